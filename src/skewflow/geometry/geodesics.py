r"""Curves on ST(d, k): $\exp(t\Omega)X$ and the geodesics of the canonical metric (Sec. 2.1.1)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import NonFiniteError
from .precision import no_autocast
from .retractions import HALVES, expm
from .skew import check_fits


@no_autocast()
def lift(
    X: Float[Tensor, "*batch d k"], Z: Float[Tensor, "*batch d k"]
) -> Float[Tensor, "*batch d d"]:
    r"""The skew $\Omega$ with $\Omega X = Z$ and $X_\perp^\top \Omega X_\perp = 0$ (Sec. 2.1.1).

    $\Omega = P Z X^\top - X Z^\top P$ with $P = I - \tfrac12 X X^\top$. For $Z = \Omega(X, G) X$
    the result is $\Omega(X, G)$, so the paper's update follows a geodesic of the canonical metric.

    Args:
        X: Point of ST(d, k).
        Z: Tangent vector at `X`.

    Example:
        >>> X, Z = torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> lift(X, Z)
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """
    _validate.tall(X)
    _validate.like(Z, X, "Z", "X")
    PZ = Z - X @ (X.mT @ Z) / 2
    S = PZ @ X.mT
    return S - S.mT


@no_autocast()
def curve(
    X: Float[Tensor, "*batch d k"],
    generator: Float[Tensor, "*batch d d"],
    t: float = 1.0,
) -> Float[Tensor, "*batch d k"]:
    r"""The curve $\gamma(t) = \exp(t\Omega) X$, tangent to $\Omega X$ at `X` (Sec. 2.1.1).

    Args:
        X: Point of ST(d, k).
        generator: Skew matrix $\Omega$ acting from the left.
        t: Time on the curve.

    Example:
        >>> H = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> bool(torch.allclose(curve(torch.eye(2), H, 0.3), expm(0.3 * H)))
        True
    """
    _validate.tall(X)
    check_fits(generator, X, "generator", (X.shape[-2], X.shape[-2]))
    _check_time(t)
    return expm(t * generator) @ X


@no_autocast()
def geodesic(
    X: Float[Tensor, "*batch d k"], Z: Float[Tensor, "*batch d k"], t: float = 1.0
) -> Float[Tensor, "*batch d k"]:
    r"""The geodesic of the canonical metric from `X` with velocity `Z` (Sec. 2.1.1).

    With $A = X^\top Z$ and $W = (I - XX^\top)Z$ it is
    $[X\,W]\exp\!\left(t\begin{bmatrix}A & -W^\top W\\ I & 0\end{bmatrix}\right)[I; 0]$, equal to
    ``curve(X, lift(X, Z), t)`` but in $O(dk^2)$. This is the form of Edelman, Arias and
    Smith (1998, Sec. 2.4) without their QR of W, whose derivative does not exist where W loses rank
    (at Z = 0, say). Half precisions are computed in float32.

    Args:
        X: Point of ST(d, k).
        Z: Tangent vector at `X`.
        t: Time on the geodesic.

    Example:
        >>> X, Z = torch.eye(3)[:, :1], torch.eye(3)[:, 1:2]
        >>> geodesic(X, Z, 0.1).ravel()
        tensor([0.9950, 0.0998, 0.0000])
    """
    _validate.tall(X)
    _validate.like(Z, X, "Z", "X")
    _check_time(t)
    if X.dtype in HALVES:
        return geodesic(X.float(), Z.float(), t).to(X.dtype)
    d, k = X.shape[-2:]
    A = X.mT @ Z
    A = (A - A.mT) / 2
    if d == k:
        return X @ expm(t * A)
    W = Z - X @ (X.mT @ Z)
    # W / c balances the matrix below; the result does not depend on c, nor does its gradient.
    c = torch.linalg.matrix_norm(W, keepdim=True).detach()
    c = torch.where(c > 0, c, 1)
    W = W / c
    I = torch.eye(k, dtype=X.dtype, device=X.device)
    top = torch.cat([A, -c * (W.mT @ W)], dim=-1)
    bottom = torch.cat([c * I, torch.zeros_like(A)], dim=-1)
    E = expm(t * torch.cat([top, bottom], dim=-2))[..., :k]  # (2k, k)
    return X @ E[..., :k, :] + W @ E[..., k:, :]


def _check_time(t: float) -> None:
    if not math.isfinite(t):
        raise NonFiniteError(
            f"`t` must be finite: got {t}. Check for an overflow where it was computed."
        )
