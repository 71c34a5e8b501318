r"""Directions of exact steps whose learning rate is an angle: dense, or as two factors.

The new direction has the generator $\Omega = DX^\top - XD^\top$ of the old one, scaled to one
radian as in `blocks_by_angle`, so that every retraction takes it (not in the paper).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision
from ..generator import forms_omega
from ..norms import frobenius, normalised
from ..rotate_factored.reference import rest_of
from .reference import Angle, planes_of
from .sign import NUM_CUBIC, NUM_QUINTIC, QUINTIC, sign


def direction_by_angle(
    X: Float[Tensor, "n d k"], D: Float[Tensor, "n d k"], angle: Angle
) -> Float[Tensor, "n d k"]:
    r"""A direction whose generator is that of D scaled to one radian.

    With "rms" it is the tangent part $T = W + XK/2$ of D over a number, where $K = X^\top D -
    D^\top X$, $W = (I - XX^\top)D$ and $\|\Omega\|_F^2 = \|K\|_F^2 + 2\|W\|_F^2$. With "spectral"
    it is the tangent vector $\mathrm{sign}(\Omega)X$ minus half of its part in X. For a matrix with
    2k < d the sign is computed in the 2k columns of W and X, without $\Omega$.

    Args:
        X: Points.
        D: Directions; not modified.
        angle: "rms" or "spectral".
    """
    d, k = X.shape[-2:]
    D, _ = normalised(D)
    with full_precision():
        S = X.mT @ D
        K, W = S - S.mT, torch.baddbmm(D, X, S, alpha=-1)
        if angle == "rms":
            norm = (frobenius(K).square() + 2 * frobenius(W).square()).sqrt()
            scale = (2 * planes_of(d, k)) ** 0.5 / torch.where(norm > 0, norm, 1)
            return torch.baddbmm(W, X, K, alpha=0.5) * scale.to(X.dtype)[:, None, None]
        if forms_omega(d, k, "exp"):
            T = torch.baddbmm(W, X, K, alpha=0.5)
            omega = T @ X.mT
            Z = sign(omega - omega.mT, planes_of(d, k)) @ X
            return torch.baddbmm(Z, X, X.mT @ Z, alpha=-0.5)
        V, c = normalised(W)  # scaled to the length of X
        c_I = c.to(X.dtype)[:, None, None] * torch.eye(k, dtype=X.dtype, device=X.device)
        N = torch.cat([torch.cat([0 * K, c_I], -1), torch.cat([-c_I, K], -1)], -2)
        L = torch.cat([V, X], -1)
        N = sign_of_factored(N, L.mT @ L, planes_of(d, k))
        return V @ N[:, :k, k:] + X @ N[:, k:, k:] / 2


def factors_by_angle(
    X: Float[Tensor, "n d k"], A: Float[Tensor, "n d r"], B: Float[Tensor, "n k r"], angle: Angle
) -> tuple[Float[Tensor, "n d R"], Float[Tensor, "n k R"]]:
    r"""Factors of a direction whose generator is that of $AB^\top$ scaled to one radian.

    With V = X B made orthogonal to A column by column, $\Omega = LJL^\top$ for $L = [A\; V]$, and
    $\|\Omega\|_F^2 = 2\langle A^\top A, V^\top V\rangle - 2\langle A^\top V, V^\top A\rangle$. The
    sign is $LNL^\top$, and has twice the rank. Nothing of size (d, k) is formed.

    Args:
        X: Points.
        A: Left factors.
        B: Right factors.
        angle: "rms" or "spectral".
    """
    (_, d, k), r = X.shape, A.shape[-1]
    planes = planes_of(d, k)  # the number for a dense gradient, whatever the rank of this one
    with full_precision():
        A, _ = normalised(A)
        B, _ = normalised(B)
        V = rest_of(X @ B, A)
        L = torch.cat([A, V], -1)
        M = L.mT @ L
        if angle == "rms":
            P, Q, R = (F.double() for F in (M[:, :r, :r], M[:, :r, r:], M[:, r:, r:]))
            squares = 2 * (P * R - Q * Q.mT).sum((-2, -1))
            scale = torch.where(squares > 0, 2 * planes / squares, 0).sqrt()
            return A * scale.to(X.dtype)[:, None, None], B
        I = torch.eye(r, dtype=X.dtype, device=X.device).expand(len(X), r, r)
        N = torch.cat([torch.cat([0 * I, I], -1), torch.cat([-I, 0 * I], -1)], -2)
        N = sign_of_factored(N, M, planes)
        XL = X.mT @ L
        return L - X @ XL / 2, XL @ N.mT


def sign_of_factored(
    N: Float[Tensor, "n r r"], M: Float[Tensor, "n r r"], planes: int
) -> Float[Tensor, "n r r"]:
    r"""N' for which $LN'L^\top$ is the sign of $LNL^\top$, given $M = L^\top L$; see `sign`."""
    squares = (M @ N @ M * N).sum((-2, -1), dtype=torch.float64) / 2
    N = N * torch.where(squares > 0, squares, 1).rsqrt().to(N.dtype)[:, None, None]
    if planes < 2:
        return N
    a, b, c = QUINTIC
    for _ in range(NUM_QUINTIC):
        P2 = torch.matrix_power(N @ M, 2)
        N = a * N + (c * (P2 @ P2) - b * P2) @ N
    for _ in range(NUM_CUBIC):
        N = 1.5 * N + 0.5 * torch.matrix_power(N @ M, 2) @ N
    return (N - N.mT) / 2
