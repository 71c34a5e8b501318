"""Tangent spaces of ST(d, k) (Lemma 2.3): X A + X_perp B with A skew."""

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import ShapeError
from .precision import no_autocast
from .retractions import HALVES
from .skew import check_fits


@no_autocast()
def tangent_project(
    X: Float[Tensor, "*batch d k"], Z: Float[Tensor, "*batch d k"]
) -> Float[Tensor, "*batch d k"]:
    r"""The tangent vector at `X` nearest to `Z` in the Frobenius norm (not in the paper).

    $Z - X\,\mathrm{sym}(X^\top Z)$. This is the Riemannian gradient under the *Euclidean* metric;
    the paper's $\Omega X$ is the one under the canonical metric (see `riemannian_gradient`).

    Example:
        >>> X = torch.eye(3)[:, :1]
        >>> tangent_project(X, torch.ones(3, 1)).ravel()
        tensor([0., 1., 1.])
    """
    _validate.tall(X)
    _validate.like(Z, X, "Z", "X")
    S = X.mT @ Z
    return Z - X @ ((S + S.mT) / 2)


@no_autocast()
def tangent_from(
    X: Float[Tensor, "*batch d k"],
    A: Float[Tensor, "*batch k k"],
    B: Float[Tensor, "*batch n k"] | None = None,
) -> Float[Tensor, "*batch d k"]:
    r"""The tangent vector $X A + X_\perp B$ (Lemma 2.3), with the skew part of `A`.

    Args:
        X: Point of ST(d, k).
        A: Matrix (k, k); only its skew part counts.
        B: Matrix (d - k, k); None on O(d), where $X_\perp$ is empty.

    Example:
        >>> X = torch.eye(3)[:, :2]
        >>> A, B = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), torch.tensor([[2.0, 3.0]])
        >>> Z = tangent_from(X, A, B)
        >>> bool(torch.allclose(X.mT @ Z + Z.mT @ X, torch.zeros(2, 2)))
        True
    """
    _validate.tall(X)
    d, k = X.shape[-2:]
    check_fits(A, X, "A", (k, k))
    Z = X @ ((A - A.mT) / 2)
    if d == k:
        if B is not None and (not isinstance(B, Tensor) or B.numel()):
            got = tuple(B.shape) if isinstance(B, Tensor) else type(B).__name__
            raise ShapeError(
                f"`B` must be None on O(d), where d=k={d} leaves no complement: got {got}. "
                "Leave `B` out."
            )
        return Z
    if B is None:
        raise ShapeError(
            f"`B` must be given for k < d: got None for d={d}, k={k}. "
            f"Pass a matrix ({d - k}, {k}); zeros keep the tangent vector in the span of X."
        )
    check_fits(B, X, "B", (d - k, k))
    return Z + complement(X) @ B


@no_autocast()
def complement(X: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d n"]:
    r"""An orthonormal basis $X_\perp$ of the complement: $[X\,X_\perp]$ is in O(d) (Sec. 2.1).

    The basis is not unique. It has d - k columns, so it is empty on O(d).

    Example:
        >>> complement(torch.eye(4)[:, :3]).abs().ravel()
        tensor([0., 0., 0., 1.])
    """
    _validate.tall(X)
    k = X.shape[-1]
    Y = X.float() if X.dtype in HALVES else X
    return torch.linalg.qr(Y, mode="complete").Q[..., k:].to(X.dtype)


def tangent_dimension(d: int, k: int) -> int:
    r"""$dk - k(k+1)/2$, the dimension of the tangent spaces of ST(d, k) (Lemma 2.3).

    For k = d it is $\dim Sk(d) = d(d-1)/2$.

    Example:
        >>> tangent_dimension(4, 4), tangent_dimension(5, 2)
        (6, 7)
    """
    if not 1 <= k <= d:
        raise ShapeError(
            f"ST(d, k) needs 1 <= k <= d: got d={d}, k={k}. For orthonormal rows swap d and k."
        )
    return d * k - k * (k + 1) // 2
