"""Tangent spaces of ST(d, k) (Lemma 2.3): X A + X_perp B with A skew."""

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import ShapeError


def tangent_project(
    X: Float[Tensor, "*batch d k"], Z: Float[Tensor, "*batch d k"]
) -> Float[Tensor, "*batch d k"]:
    r"""The tangent vector at `X` nearest to `Z` in the Frobenius norm.

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
    _validate.square(A, "A")
    d, k = X.shape[-2:]
    if A.shape[-1] != k:
        raise ShapeError(f"`A` must be (k, k) with k={k}: got {tuple(A.shape)}.")
    Z = X @ ((A - A.mT) / 2)
    if d == k:
        if B is not None and B.numel():
            raise ShapeError(f"`B` must be None on O(d), where d=k={d}: got {tuple(B.shape)}.")
        return Z
    if B is None or B.shape[-2:] != (d - k, k):
        got = None if B is None else tuple(B.shape)
        raise ShapeError(f"`B` must be (d - k, k) = ({d - k}, {k}): got {got}.")
    return Z + complement(X) @ B


def complement(X: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d n"]:
    r"""An orthonormal basis $X_\perp$ of the complement: $[X\,X_\perp]$ is in O(d) (Sec. 2.1).

    One of many; it has d - k columns and so none on O(d).

    Example:
        >>> complement(torch.eye(4)[:, :3]).abs().ravel()
        tensor([0., 0., 0., 1.])
    """
    _validate.tall(X)
    k = X.shape[-1]
    return torch.linalg.qr(X, mode="complete").Q[..., k:]


def tangent_dimension(d: int, k: int) -> int:
    r"""$dk - k(k+1)/2$, the dimension of ST(d, k); for k = d it is $\dim Sk(d) = d(d-1)/2$.

    Example:
        >>> tangent_dimension(4, 4), tangent_dimension(5, 2)
        (6, 7)
    """
    if not 1 <= k <= d:
        raise ShapeError(f"ST(d, k) needs 1 <= k <= d: got d={d}, k={k}.")
    return d * k - k * (k + 1) // 2
