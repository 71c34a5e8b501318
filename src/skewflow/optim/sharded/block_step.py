r"""A step by random blocks of a weight whose columns are split (Eq. 8).

The entries of the generator are inner products of rows, $D_i \cdot X_j - X_i \cdot D_j$: sums over
columns. Each process adds up its own columns; the all-reduce has the strictly lower half of each
skew block, $d (s - 1) / 2$ numbers. Every process then turns the rows of its columns.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..._typing import MatrixBlocks
from ...geometry.precision import full_precision, users_precision
from ...kernels.block_step import rotate_
from ...kernels.rotate_blocks.reference import divide_blocks, rotations
from ...kernels.turn_by_angle.reference import Angle, blocks_by_angle
from ...kernels.update import Update
from ...tournaments.partitions import Partition

Estimate = tuple[Partition, MatrixBlocks]


def entries(
    X: Float[Tensor, "n d k"], D: Float[Tensor, "n d k"], partitions: Sequence[Partition]
) -> Float[Tensor, "m"]:
    """The strictly lower entries of all blocks, summed over the columns of this process."""
    found = [X.new_empty(0)]
    with users_precision(X):
        for X_b, D_b, partition in zip(X, D, partitions, strict=True):
            for rows in partition.blocks:
                S = D_b[rows] @ X_b[rows].mT  # (l, s, s)
                i, j = _below(rows)
                found.append((S - S.mT)[:, i, j].flatten())
    return torch.cat(found)


def skew_blocks(lower: Float[Tensor, "m"], partitions: Sequence[Partition]) -> list[MatrixBlocks]:
    """The blocks of each matrix, from the entries that `entries` lists."""
    start, matrices = 0, []
    for partition in partitions:
        blocks = []
        for rows in partition.blocks:
            (l, s), (i, j) = rows.shape, _below(rows)
            part = lower[start : start + l * len(i)].view(l, len(i))
            block = lower.new_zeros(l, s, s)
            block[:, i, j], block[:, j, i] = part, -part
            blocks.append(block)
            start += l * len(i)
        matrices.append(tuple(blocks))
    return matrices


def estimates(
    lower: Float[Tensor, "m"],
    partitions: Sequence[Partition],
    moments: Float[Tensor, "n d"] | None,
    angle: Angle | None,
    columns: int,
) -> list[Estimate]:
    """The estimate of each matrix.

    Args:
        lower: The entries that `entries` lists, summed over all columns.
        partitions: The blocks of each matrix.
        moments: Second moments of the rows, which divide the planes, or None.
        angle: Scale the blocks to one radian by this kind of angle, or None.
        columns: k, of the whole matrices.
    """
    matrices = skew_blocks(lower, partitions)
    if moments is not None:
        divided = zip(matrices, partitions, moments, strict=True)
        matrices = [divide_blocks(blocks, T, w) for blocks, T, w in divided]
    if angle is not None:
        matrices = [blocks_by_angle(blocks, columns, angle) for blocks in matrices]
    return list(zip(partitions, matrices, strict=True))


def turn_(
    X: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    drawn: Sequence[Estimate],
    update: Update,
) -> None:
    """Turn the rows of the columns on this process, and of the momentum, in place.

    Under the unbiased law one over the probability of an edge multiplies the learning rate. Blocks
    are turned by R - I from float64, so that all rounding is that of a sum: the error grows to a
    third of that of a product with R.
    """
    if not X.numel():
        return
    for b, (partition, blocks) in enumerate(drawn):
        scale = 1.0
        if update.angle is None:
            scale = partition.d * (partition.d - 1) / (2 * partition.num_edges)
        scaled = replace(update, lr=update.lr * scale)
        X_b, M_b = X[b], None if M is None else M[b]
        if X.device.type == "cpu" and partition.blocks[0].shape[1] == 2:
            rotate_(X_b, M_b, partition, blocks, scaled)
            continue
        with full_precision():
            for rows, block in zip(partition.blocks, blocks, strict=True):
                if rows.shape[1] < 2:
                    continue
                R = rotations(block.double(), -scaled.lr, update.retraction)
                R.diagonal(dim1=-2, dim2=-1).sub_(1)
                for part in (X_b,) if M_b is None else (X_b, M_b):
                    part[rows] += R.to(part) @ part[rows]


def _below(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The positions below the diagonal of a block."""
    s = rows.shape[1]
    i, j = torch.tril_indices(s, s, -1, device=rows.device)
    return i, j
