"""Reference of `rotate_blocks`: one small exponential per block (Eq. 8)."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ... import _validate
from ..._typing import MatrixBlocks
from ...errors import ShapeError
from ...geometry.retractions import cayley, expm
from ...tournaments.counting import edge_probability
from ...tournaments.edge_weights import EdgeWeights
from ...tournaments.partitions import Partition, block_sizes
from ..permutation import order_at
from ..update import Update, direction


def rotate_blocks(
    X: Float[Tensor, "d k"],
    partition: Partition,
    blocks: MatrixBlocks,
    eta: float,
    retraction: Literal["exp", "cayley"] = "exp",
) -> Float[Tensor, "d k"]:
    r"""The update $X \leftarrow \prod_k \Gamma(\eta\hat\Omega_{T_k}) X$ of Eq. 8.

    The blocks are disjoint, so their rotations commute and each mixes its own s rows:
    $O(dsk)$ to apply, $O(ds^2)$ for the exponentials. Equal to
    $\Gamma(\eta\hat\Omega) X$ with the assembled (d, d) estimate.

    Args:
        X: Point; not modified.
        partition: The blocks' rows.
        blocks: The skew estimate inside each block, as from `Tournament.blocks`.
        eta: Step size; positive ascends, so a minimiser passes ``-lr``.
        retraction: "exp" or "cayley".

    Example:
        >>> from skewflow.samplers import Uniform
        >>> X, G = torch.eye(6), torch.arange(36.0).view(6, 6)
        >>> W = EdgeWeights(X, G)
        >>> t = Uniform(3).sample(W, generator=torch.Generator().manual_seed(0))
        >>> Y = rotate_blocks(X, t.partition, t.blocks(W), eta=-0.01)
        >>> bool(torch.allclose(Y.mT @ Y, torch.eye(6), atol=1e-6))
        True
    """
    _validate.one_of(retraction, ("exp", "cayley"), "retraction")
    _validate.matrix(X, "X")
    if partition.d != X.shape[0]:
        raise ShapeError(
            f"`partition` must cover the d={X.shape[0]} rows of `X`: got one of {partition.d} rows."
        )
    gamma = expm if retraction == "exp" else cayley
    Y = X.clone()
    for rows, omega in zip(partition.blocks, blocks, strict=True):
        if rows.shape[1] > 1:
            Y[rows] = gamma(eta * omega) @ X[rows]  # (l, s, k)
    return Y


def step_blocks(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""],
    update: Update,
    block_size: int,
) -> tuple[Float[Tensor, "n d k"], Float[Tensor, "n d k"] | None]:
    r"""One step of blocks of s rows on a batch of points: momentum, $\hat\Omega$, rotation.

    Every matrix draws its own uniform partition, the shuffled order of `order_at` cut into blocks
    whose sizes differ by at most one. The rows of a block turn by
    $\Gamma(-lr \cdot c\,(D_B X_B^\top - X_B D_B^\top))$ with the direction D and $c = 1/P(e)$.

    Args:
        X: Points, n matrices with orthonormal columns.
        G: Euclidean gradients.
        M: Momentum buffers, or None.
        step: Steps done before.
        update: Step size, momentum and seed.
        block_size: s, between 2 and d.

    Returns:
        The new points and the new momentum.
    """
    D, M = direction(G.to(X.dtype), M, update)
    d = X.shape[-2]
    sizes = block_sizes(d, block_size)
    scale = float(1 / edge_probability(d, block_size))
    rotated = []
    for b, (X_b, D_b) in enumerate(zip(X, D, strict=True)):
        order = order_at(d, update.seed, update.stream + b, step)
        partition = Partition.from_order(order, sizes)
        omega = EdgeWeights(X_b, D_b).blocks(partition)
        rotated.append(rotate_blocks(X_b, partition, omega, -update.lr * scale, update.retraction))
    return torch.stack(rotated), M
