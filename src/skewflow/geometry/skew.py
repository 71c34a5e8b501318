"""Skew-symmetric generators: Omega(X, G) (Eq. 2) and the basis H_ij of Sk(d) (Sec. 2.1)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import DtypeError, ShapeError
from .precision import no_autocast

Side = Literal["left", "right"]


@no_autocast()
def omega(
    X: Float[Tensor, "*batch d k"], G: Float[Tensor, "*batch d k"], side: Side = "left"
) -> Float[Tensor, "*batch n n"]:
    r"""The skew generator of the gradient flow on ST(d, k) (Eq. 2).

    ``side="left"``: $\Omega = G X^\top - X G^\top$, for the step $X \leftarrow \exp(\eta\Omega) X$.
    ``side="right"``: the reverse form $\Omega = X^\top G - G^\top X$, for the step
    $X \leftarrow X \exp(\eta\Omega)$; only on O(d), because for k < d it never leaves the span
    of $X$. On O(d) the two steps are equal, since $\Omega_{left} = X \Omega_{right} X^\top$.

    With a positive step both *ascend* F when G is the gradient of F. Costs $O(d^2 k)$; fast paths
    compute single entries through `tournaments.EdgeWeights` instead.

    Args:
        X: Point with orthonormal columns.
        G: Euclidean gradient at `X`.
        side: Which side of `X` the generator acts on.

    Example:
        >>> X, G = torch.eye(2), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        >>> omega(X, G)
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """
    _validate.tall(X)
    _validate.like(G, X, "G", "X")
    check_side(side, *X.shape[-2:])
    A, B = (G, X) if side == "left" else (X.mT, G.mT)
    S = A @ B.mT
    return S - S.mT


def basis(
    d: int, i: int, j: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Float[Tensor, "d d"]:
    r"""The basis matrix $H_{ij}$ of Sk(d): $+1$ at (i, j), $-1$ at (j, i) (Sec. 2.1).

    Example:
        >>> basis(3, 0, 2)
        tensor([[ 0.,  0.,  1.],
                [ 0.,  0.,  0.],
                [-1.,  0.,  0.]])
    """
    check_plane(d, i, j)
    check_dtype(dtype)
    H = torch.zeros(d, d, dtype=dtype, device=device)
    H[i, j], H[j, i] = 1.0, -1.0
    return H


def skew(A: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    r"""The skew part $(A - A^\top)/2$: the nearest point of Sk(d) in the Frobenius norm (Sec. 2.1).

    Example:
        >>> skew(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """
    _validate.square(A, "A")
    return (A - A.mT) / 2


def check_side(side: Side, d: int, k: int) -> None:
    """Check that `side` is "left", or "right" with d = k (Sec. 2.1.2)."""
    _validate.one_of(side, ("left", "right"), "side")
    if side == "right" and d != k:
        raise ShapeError(
            f'`side="right"` (the reverse form) needs a square X: got d={d}, k={k}, where it '
            'would never leave the span of X. Use side="left".'
        )


def check_plane(d: int, i: int, j: int) -> None:
    """Check that `i` and `j` are two different rows of `d`."""
    if not (0 <= i < d and 0 <= j < d) or i == j:
        raise ShapeError(
            f"a plane needs two different rows in 0..{d - 1}: got i={i}, j={j} for d={d}. "
            "Rows count from 0, and d must be at least 2."
        )


def check_dtype(dtype: torch.dtype | None) -> None:
    """Check that `dtype` is None or a real floating dtype that skewflow supports."""
    if dtype is not None and dtype not in _validate.FLOATS:
        allowed = ", ".join(str(d) for d in _validate.FLOATS)
        raise DtypeError(
            f"`dtype` must be a real floating dtype: got {dtype}. Use one of {allowed}."
        )


def check_fits(A: Tensor, X: Tensor, name: str, shape: tuple[int, int]) -> None:
    """Check that `A` is a matrix of `shape` with the batch dimensions, dtype and device of `X`."""
    _validate.matrix(A, name)
    expected = (*X.shape[:-2], *shape)
    if tuple(A.shape) != expected:
        raise ShapeError(
            f"`{name}` must have shape {expected} to go with `X` of shape {tuple(X.shape)}: "
            f"got {tuple(A.shape)}. Reshape it, or expand the one that lacks batch dimensions."
        )
    _validate.same_kind(A, X, name, "X")
