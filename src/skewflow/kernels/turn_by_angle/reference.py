r"""Reference of block steps whose learning rate is an angle in radians (not in the paper).

The generator $\Omega_B$ of the drawn blocks (Eq. 7 without its weight) is scaled to one radian, and
then turns the rows of the point and of its momentum as in `rotate_blocks` (Eq. 8). With "rms" one
factor makes the root mean square of the angles of all planes that can turn one radian; with
"spectral" the sign of each block turns every plane by one radian. Blocks of a single plane, such as
pairs, would lose the size of their only entry, so they get a soft sign.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..._typing import MatrixBlocks
from ...tournaments.edge_weights import EdgeWeights
from ...tournaments.partitions import Partition, block_sizes
from ..permutation.reference import matching_at, order_at
from ..rotate_blocks.reference import rotate_blocks
from ..update import Update, apart, beside, direction
from .sign import sign

Angle = Literal["rms", "spectral"]
"""The meaning of the learning rate: the root-mean-square angle of all planes, or that of each."""

SOFTNESS = 2.0
r"""$\tau$ of the soft sign of single planes, $x\sqrt{1+\tau^2}/\sqrt{x^2+\tau^2}$: a plane at the
root mean square, x = 1, turns by one radian, and none by more than $\sqrt{1+\tau^2}$."""


def planes_of(rows: int, columns: int) -> int:
    """Most planes that a generator can turn; with k columns its rank is at most 2k."""
    return min(rows // 2, columns)


def blocks_by_angle(blocks: MatrixBlocks, columns: int, angle: Angle) -> MatrixBlocks:
    r"""The skew blocks of one matrix, scaled to an angle of one radian.

    "rms" multiplies by $\sqrt{2p} / \|\Omega_B\|_F$, where the norm is that of all blocks and p is
    the number of planes that they can turn. "spectral" takes the sign of each block, and the soft
    sign, see `SOFTNESS`, where no block turns more than one plane.

    Args:
        blocks: One (l, s, s) tensor for each block size.
        columns: k, of the matrix.
        angle: "rms" or "spectral".

    Example:
        >>> A = torch.tensor([[[0.0, -3.0], [3.0, 0.0]], [[0.0, 4.0], [-4.0, 0.0]]])
        >>> (B,) = blocks_by_angle((A,), columns=4, angle="rms")
        >>> float(B[:, 0, 1].square().mean())
        1.0
    """
    turning = [planes_of(block.shape[-1], columns) for block in blocks]
    if angle == "spectral" and max(turning) > 1:
        return tuple(sign(block, planes) for block, planes in zip(blocks, turning, strict=True))
    planes = sum(len(block) * each for block, each in zip(blocks, turning, strict=True))
    squares = [block.to(torch.float64).square().sum((-2, -1)) / 2 for block in blocks]
    mean = torch.cat(squares).sum() / planes
    mean = mean.where(mean > 0, 1)
    if angle == "rms":
        return tuple((block / mean.sqrt()).to(block.dtype) for block in blocks)
    scales = [((1 + SOFTNESS**2) / (z + SOFTNESS**2 * mean)).sqrt() for z in squares]
    scaled = zip(blocks, scales, strict=True)
    return tuple((block * scale[:, None, None]).to(block.dtype) for block, scale in scaled)


def step_by_angle(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""],
    update: Update,
    block_size: int,
) -> tuple[Float[Tensor, "n d k"], Float[Tensor, "n d k"] | None]:
    """One step in blocks on a batch of points; each matrix is scaled and drawn separately.

    Args:
        X: Points, n matrices with orthonormal columns.
        G: Euclidean gradients.
        M: Momentum buffers, or None; they turn with their rows.
        step: Steps done before.
        update: The angle and its kind, momentum and seed.
        block_size: s, between 2 and d; pairs are drawn as by `step_pairs`, others as by
            `step_blocks`.

    Returns:
        The new points and the new momentum.
    """
    assert update.angle is not None
    D, M = direction(G.to(X.dtype), M, update)
    d, k = X.shape[-2:]
    rotated = []
    for b, (X_b, D_b, XM_b) in enumerate(zip(X, D, beside(X, M), strict=True)):
        partition = drawn_partition(d, block_size, update, update.stream + b, step)
        blocks = blocks_by_angle(EdgeWeights(X_b, D_b).blocks(partition), k, update.angle)
        rotated.append(rotate_blocks(XM_b, partition, blocks, -update.lr, update.retraction))
    return apart(torch.stack(rotated), k)


def drawn_partition(
    d: int, block_size: int, update: Update, stream: int, step: Int[Tensor, ""]
) -> Partition:
    """The blocks of the fused step number `step`: a matching, or parts of the shuffled order."""
    if block_size > 2:
        order = order_at(d, update.seed, stream, step)
        return Partition.from_order(order, block_sizes(d, block_size))
    pairs, single = matching_at(d, update.seed, stream, step, independent=update.independent)
    order = torch.cat([pairs.flatten(), single])
    return Partition.from_order(order, block_sizes(d, 2))
