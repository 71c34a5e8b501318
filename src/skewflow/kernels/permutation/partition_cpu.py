"""The blocks of a fused step, drawn on the host in numba: those of `drawn_partition`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np
import torch

from ...tournaments.partitions import Partition, block_sizes
from .._runtime.numba_loops import kept
from ..update import Update
from .cpu import fill_matching, fill_order
from .reference import num_rounds_of_sweep


def partition_at(
    d: int, block_size: int, update: Update, stream: int, step: int, device: torch.device
) -> Partition:
    """The blocks of one step: a matching, or parts of the shuffled order.

    On a GPU the reference would launch hundreds of kernels, and wait.

    Args:
        d: Number of rows.
        block_size: Rows of a block.
        update: The numbers of the step, with the seed.
        stream: Number of the matrix.
        step: How many steps were done before.
        device: The device of the result.
    """
    order = np.empty(d, np.int64)
    if block_size == 2 and update.independent:
        step *= num_rounds_of_sweep(d)
    _fill(order, block_size == 2, *map(np.uint64, (update.seed, stream, step)))
    rows = torch.from_numpy(order).to(device, non_blocking=True)
    return Partition.from_order(rows, block_sizes(d, block_size))


@kept
def _fill(order, matching, seed, stream, step):
    d = order.size
    if not matching:
        drawn = np.empty(d, np.uint32)
        fill_order(drawn, 0, d, seed, stream, step)
        order[:] = drawn
        return
    pairs = np.empty((2, (d + 1) // 2), np.uint32)
    fill_matching(pairs, 0, d, seed, stream, step)
    order[::2] = pairs[0]
    order[1::2] = pairs[1, : d // 2]
