"""The blocks that the host draws in numba. Not among the tests with checked shapes: numba refuses a
loop that jaxtyping has wrapped."""

import pytest
import torch

from skewflow.kernels.permutation.partition_cpu import partition_at
from skewflow.kernels.turn_by_angle.reference import drawn_partition
from skewflow.kernels.update import Update


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("d, s", [(2, 2), (5, 2), (64, 2), (5, 3), (129, 16), (8, 8)])
def test_blocks_of_the_host_are_those_of_the_reference(d, s, independent):
    for seed, stream, step in [(0, 0, 0), (2**63 - 1, 7, 1000), (5, 1, 1 << 40)]:
        update = Update(lr=0.1, seed=seed, independent=independent)
        fast = partition_at(d, s, update, stream, step, torch.device("cpu"))
        slow = drawn_partition(d, s, update, stream, torch.tensor(step))
        for a, b in zip(fast.blocks, slow.blocks, strict=True):
            assert torch.equal(a, b)
