"""Reference of `rotate_blocks`: one small exponential per block (Eq. 8)."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ... import _validate
from ..._typing import MatrixBlocks
from ...errors import NonFiniteError, ShapeError
from ...geometry.checks import check_skew, require
from ...geometry.retractions import cayley, expm
from ...tournaments.partitions import Partition


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
        >>> from skewflow.tournaments import EdgeWeights
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
        raise NonFiniteError(f"`eta` must be finite: got {eta}. Look at the step size.")
    Y = X.clone()
    for rows, omega in zip(partition.blocks, blocks, strict=True):
        if rows.shape[1] > 1:
            R = _rotation(eta * omega, retraction)
            Y[rows] = (R @ X[rows].to(R)).to(X.dtype)  # (l, s, k)
    return Y


def _rotation(A: Float[Tensor, "l s s"], retraction: str) -> Float[Tensor, "l s s"]:
    if retraction == "cayley":
        return cayley(A)
    if A.shape[-1] != 2:
        return expm(A)
    theta = A[:, 0, 1]  # a plane turns exactly, whatever the angle
    c, s = theta.cos(), theta.sin()
    return torch.stack([c, s, -s, c], dim=-1).view(-1, 2, 2)


def _check(X: Tensor, partition: Partition, blocks: MatrixBlocks) -> None:
    """One matrix, a partition of its rows, and a skew matrix for each block."""
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
