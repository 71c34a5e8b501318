r"""Curves on ST(d, k): $\exp(t\Omega)X$ and the geodesics of the canonical metric (Sec. 2.1.1)."""

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from .retractions import expm


def lift(
    X: Float[Tensor, "*batch d k"], Z: Float[Tensor, "*batch d k"]
) -> Float[Tensor, "*batch d d"]:
    r"""The skew $\Omega$ with $\Omega X = Z$ and $X_\perp^\top \Omega X_\perp = 0$.

    $\Omega = P Z X^\top - X Z^\top P$ with $P = I - \tfrac12 X X^\top$. For $Z = \Omega(X, G) X$ it
    gives $\Omega(X, G)$ back, which is why the paper's update runs along a canonical geodesic.

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


def curve(
    X: Float[Tensor, "*batch d k"],
    generator: Float[Tensor, "*batch d d"],
    t: float = 1.0,
) -> Float[Tensor, "*batch d k"]:
    r"""The curve $\gamma(t) = \exp(t\Omega) X$, tangent to $\Omega X$ at `X` (Sec. 2.1.1).

    Args:
        X: Point of ST(d, k).
        generator: Skew matrix $\Omega$ acting from the left.
        t: Where on the curve.

    Example:
        >>> H = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> bool(torch.allclose(curve(torch.eye(2), H, 0.3), expm(0.3 * H)))
        True
    """
    _validate.tall(X)
    return expm(t * generator) @ X


def geodesic(
    X: Float[Tensor, "*batch d k"], Z: Float[Tensor, "*batch d k"], t: float = 1.0
) -> Float[Tensor, "*batch d k"]:
    r"""The geodesic of the canonical metric from `X` with velocity `Z`, in $O(dk^2)$.

    With $A = X^\top Z$ and $QR = (I - XX^\top)Z$ it is
    $[X\,Q]\exp\!\left(t\begin{bmatrix}A & -R^\top\\ R & 0\end{bmatrix}\right)[I; 0]$
    (Edelman, Arias and Smith 1998, Eq. 2.42), equal to ``curve(X, lift(X, Z), t)``.

    Example:
        >>> X, Z = torch.eye(3)[:, :1], torch.eye(3)[:, 1:2]
        >>> geodesic(X, Z, 0.1).ravel()
        tensor([0.9950, 0.0998, 0.0000])
    """
    _validate.tall(X)
    _validate.like(Z, X, "Z", "X")
    d, k = X.shape[-2:]
    A = X.mT @ Z
    A = (A - A.mT) / 2
    if d == k:
        return X @ expm(t * A)
    Q, R = torch.linalg.qr(Z - X @ (X.mT @ Z))  # (d, min(d, k)): k columns since d > k
    top = torch.cat([A, -R.mT], dim=-1)
    bottom = torch.cat([R, torch.zeros_like(R)], dim=-1)
    E = expm(t * torch.cat([top, bottom], dim=-2))[..., :k]  # (2k, k)
    return X @ E[..., :k, :] + Q @ E[..., k:, :]
