"""Reference of `rotate_blocks`: one small exponential per block (Eq. 8)."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ... import _validate
from ..._typing import MatrixBlocks
from ...errors import NonFiniteError, ShapeError
from ...geometry.checks import check_skew, require
from ...geometry.precision import no_autocast
from ...geometry.retractions import cayley, expm
from ...tournaments.edge_weights import EdgeWeights
from ...tournaments.partitions import Partition, block_sizes, edge_probability
from ..permutation import order_at
from ..update import LARGEST_ANGLE, Update, apart, beside, direction


@no_autocast()
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
    _check(X, partition, blocks)
    if not math.isfinite(eta):
        raise NonFiniteError(f"`eta` must be finite: got {eta}. Check the step size.")
    Y = X.clone()
    for rows, omega in zip(partition.blocks, blocks, strict=True):
        if rows.shape[1] > 1:
            R = rotations(omega, eta, retraction)
            Y[rows] = (R @ X[rows].to(R)).to(X.dtype)  # (l, s, k)
    return Y


def step_blocks(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""],
    update: Update,
    block_size: int,
    moments: Float[Tensor, "n d"] | None = None,
) -> tuple[Float[Tensor, "n d k"], Float[Tensor, "n d k"] | None]:
    r"""One step of blocks of s rows on a batch of points: momentum, $\hat\Omega$, rotation.

    Every matrix draws its own uniform partition, the shuffled order of `order_at` cut into blocks
    whose sizes differ by at most one. The rows of a block turn by
    $\Gamma(-lr \cdot c\,(D_B X_B^\top - X_B D_B^\top))$ with the direction D and $c = 1/P(e)$.
    The momentum turns with its rows.

    Args:
        X: Points, n matrices with orthonormal columns.
        G: Euclidean gradients.
        M: Momentum buffers, or None.
        step: Steps done before.
        update: Step size, momentum and seed.
        block_size: s, between 2 and d.
        moments: Second moments of the rows, or None; see `divide_blocks`.

    Returns:
        The new points and the new momentum.
    """
    D, M = direction(G.to(X.dtype), M, update)
    d, k = X.shape[-2:]
    sizes = block_sizes(d, block_size)
    scale = float(1 / edge_probability(d, block_size))
    rotated = []
    for b, (X_b, D_b, XM_b) in enumerate(zip(X, D, beside(X, M), strict=True)):
        order = order_at(d, update.seed, update.stream + b, step)
        partition = Partition.from_order(order, sizes)
        omega = EdgeWeights(X_b, D_b).blocks(partition)
        if moments is not None:
            omega = divide_blocks(omega, partition, moments[b])
        rotated.append(rotate_blocks(XM_b, partition, omega, -update.lr * scale, update.retraction))
    return apart(torch.stack(rotated), k)


def divide_blocks(
    blocks: MatrixBlocks, partition: Partition, moments: Float[Tensor, "d"]
) -> MatrixBlocks:
    r"""Each entry (i, j) of skew blocks divided by $\sqrt{(w_i + w_j)/2}$: skew again."""
    divided = []
    for rows, block in zip(partition.blocks, blocks, strict=True):
        w = moments[rows].to(block)  # (l, s)
        divided.append(block / ((w[:, :, None] + w[:, None, :]) / 2).sqrt())
    return tuple(divided)


def rotations(omega: Float[Tensor, "l s s"], eta: float, retraction: str) -> Float[Tensor, "l s s"]:
    r"""$\Gamma(\eta\,\Omega)$ of skew blocks, in their dtype."""
    return _rotation(_cut(eta, omega), retraction)


def _cut(eta: float, omega: Float[Tensor, "l s s"]) -> Float[Tensor, "l s s"]:
    """The blocks times `eta`, cut to `LARGEST_ANGLE`; a plane turns exactly by any finite angle."""
    largest = torch.finfo(omega.dtype).max
    angle = largest / 2 if omega.shape[-1] == 2 else LARGEST_ANGLE[torch.float64]
    size = omega.abs().amax((-2, -1), keepdim=True)
    unit = omega / size.where(size > 0, 1)  # its squares do not overflow
    norm = torch.linalg.vector_norm(unit, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    most = (angle / norm / size).clamp(max=min(abs(eta), largest)).to(omega.dtype)
    return math.copysign(1.0, eta) * most * omega


def _rotation(A: Float[Tensor, "l s s"], retraction: str) -> Float[Tensor, "l s s"]:
    if A.shape[-1] != 2:
        A = (A - A.mT) / 2  # division by weights may have rounded its two halves differently
        R = cayley(A) if retraction == "cayley" else expm(A)
        I = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        return R + R @ (I - R.mT @ R) / 2  # undoes the drift of large angles
    theta = A[:, 0, 1] if retraction == "exp" else 2 * torch.atan(A[:, 0, 1] / 2)
    c, s = theta.cos(), theta.sin()
    return torch.stack([c, s, -s, c], dim=-1).view(-1, 2, 2)


def _check(X: Tensor, partition: Partition, blocks: MatrixBlocks) -> None:
    """Check for one matrix, a partition of its rows, and a skew matrix for each block."""
    if X.ndim != 2 or partition.d != X.shape[0]:
        raise ShapeError(
            f"`X` must be one matrix with the {partition.d} rows of `partition`: got shape "
            f"{tuple(X.shape)}. Sample the partition from the weights of this matrix."
        )
    expected = [(*b.shape, b.shape[1]) for b in partition.blocks]
    got = [tuple(block.shape) for block in blocks]
    if got != expected:
        raise ShapeError(
            f"`blocks` must hold one (l, s, s) tensor for each block size, {expected}: got {got}. "
            "Take them from `Tournament.blocks`."
        )
    for block in blocks:
        require(check_skew(block))
