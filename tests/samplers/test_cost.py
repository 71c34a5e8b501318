"""What each sampler reads of Omega, by the counter of `EdgeWeights`."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import randn, random_stiefel
from skewflow.kernels import rotate_blocks
from skewflow.samplers import (
    HRegular,
    Optimal,
    RelabelledRoundRobin,
    RoundRobin,
    Sparsified,
    Uniform,
)
from skewflow.tournaments import EdgeWeights


class LargestTensor(TorchDispatchMode):
    """The most elements of any tensor that an operation returned."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel(), tensor.untyped_storage().nbytes() // 8)
        return result


@pytest.mark.parametrize("sampler", [Uniform(2), RoundRobin(), RelabelledRoundRobin()], ids=str)
def test_one_matching_step_on_a_tall_matrix_reads_half_d_entries_and_never_forms_omega(
    sampler, generator
):
    d, k = 20_000, 8
    X = random_stiefel(d, k, generator=generator, dtype=torch.float32)
    G = randn(d, k, generator=generator, dtype=torch.float32)
    with LargestTensor() as largest:
        W = EdgeWeights(X, G)
        t = sampler.sample(W, generator=generator)
        Y = rotate_blocks(X, t.partition, t.blocks(W), eta=-1e-7)
    assert W.evaluated == d // 2
    assert largest.numel < d * d / 1000
    assert torch.linalg.matrix_norm(Y.mT @ Y - torch.eye(k)) < 1e-4


@pytest.mark.parametrize("s", [2, 3, 8, 50])
def test_uniform_reads_the_edges_of_its_partition_and_no_more(s, generator):
    d = 50
    W = EdgeWeights(random_stiefel(d, 5, generator=generator), randn(d, 5, generator=generator))
    t = Uniform(s).sample(W, generator=generator)
    assert W.evaluated == 0
    t.blocks(W)
    assert W.evaluated == t.partition.num_edges


def test_h_regular_with_squares_never_reads_all_of_omega(generator):
    d, k, s = 3000, 4, 2
    W = EdgeWeights(random_stiefel(d, k, generator=generator), randn(d, k, generator=generator))
    with LargestTensor() as largest:
        HRegular(s, "square").sample(W, generator=generator)
    assert W.evaluated == (d - 1) + d // 2  # one row, and the partition's own weight
    assert largest.numel < d * d / 100


def test_h_regular_with_abs_reads_all_of_omega_once_for_many_draws(generator):
    d = 60
    W = EdgeWeights(random_stiefel(d, 4, generator=generator), randn(d, 4, generator=generator))
    sampler = HRegular(2, "abs")
    for _ in range(10):
        sampler.sample(W, generator=generator)
    assert W.evaluated == d * (d - 1) // 2 + 10 * (d - 1 + d // 2)


@pytest.mark.parametrize("sampler", [HRegular(2, "abs", "reject-2"), Optimal(2)], ids=str)
def test_samplers_with_a_certified_bound_read_omega_once(sampler, generator):
    d = 200
    W = EdgeWeights(random_stiefel(d, 4, generator=generator), randn(d, 4, generator=generator))
    sampler.sample(W, generator=generator)
    assert W.evaluated == d * (d - 1) // 2


def test_sparsified_reads_only_the_edges_it_drew(generator):
    d, r = 2000, 100
    W = EdgeWeights(random_stiefel(d, 4, generator=generator), randn(d, 4, generator=generator))
    Sparsified(r).sample(W, generator=generator)
    assert W.evaluated <= r


def test_version_i_reads_m_entries_a_trial(generator):
    d = 12
    W = EdgeWeights(random_stiefel(d, 4, generator=generator), randn(d, 4, generator=generator))
    t = HRegular(2, "abs", "reject-1").sample(W, generator=generator)
    assert W.evaluated == d * (d - 1) // 2 + t.trials * d // 2
