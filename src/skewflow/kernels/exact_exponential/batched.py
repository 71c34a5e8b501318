r"""$\exp(-lr\,\Omega)X$ of a batch, for any device and any length."""

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision, is_coarse, users_precision
from ..generator import forms_omega, generator
from ..multiply_where import multiply_where_, num_rounds
from ..norms import frobenius, normalised
from ..polish.reference import polish_
from ..update import LARGEST_ANGLE
from .series import FEW_SQUARINGS, expm_minus_identity, spectral_bound

LARGEST_THIN_ANGLE = {torch.float32: 2.0**9, torch.float64: 2.0**14}
r"""Largest $\|lr\,W\|$ for a thin step: if W lacks full rank, its basis is not orthogonal, and
rounding grows with the square of the angle."""

FEW_THIN_SQUARINGS = 5
"""Most squarings after which one polish suffices; see `FEW_SQUARINGS`."""


def batched_step(
    X: Tensor, D: Tensor, lr: float | Tensor, moments: Tensor | None
) -> Float[Tensor, "n d k"]:
    """See `dispatch.exponential_step`."""
    _, d, k = X.shape
    if not forms_omega(d, k, "exp"):
        return _thin_step(X, D, lr)
    with users_precision(X):
        return _turned(X, generator(X, D, moments), lr)


def _turned(
    X: Float[Tensor, "n d k"], omega: Float[Tensor, "n d d"], lr: float | Tensor
) -> Float[Tensor, "n d k"]:
    r"""$\exp(-lr\,\Omega)X$ in four products of (d, d) matrices, if the norm is small."""
    U, norm = normalised(omega)
    U2 = U @ U
    most = LARGEST_ANGLE[X.dtype]
    E, squarings = expm_minus_identity(U, U2, -(lr * norm), spectral_bound(U2), most)
    Y = (E @ X).add_(X)  # a sum that starts from X would be rounded at each term
    if is_coarse(X):
        polish_(Y)
    # A skew generator preserves the lengths of X, so nothing else needs a polish.
    return _polished_where(Y, squarings)


def _thin_step(
    X: Float[Tensor, "n d k"], D: Float[Tensor, "n d k"], lr: float | Tensor
) -> Float[Tensor, "n d k"]:
    r"""$\exp(-lr\,\Omega)X$ in the basis of the columns of X and $W = (I - XX^\top)D$.

    There $\Omega$ is $\begin{bmatrix}K & -W^\top W\\ I & 0\end{bmatrix}$ with
    $K = X^\top D - D^\top X$, as in `geodesic`. Division of W by a bound on its norm balances it.
    """
    k = X.shape[-1]
    with users_precision(X):
        D, norm = normalised(D)
        S = X.mT @ D
        K = S - S.mT
        W = torch.baddbmm(D, X, S, alpha=-1)
        C = W.mT @ W
        c = frobenius(C).sqrt()
        bound = spectral_bound(K @ K) + c
        c = torch.where(c > 0, c, 1).to(X.dtype)[:, None, None]
        I = torch.eye(k, dtype=X.dtype, device=X.device)
        B = torch.cat(
            [torch.cat([K, -C / c], dim=-1), torch.cat([c * I, torch.zeros_like(K)], dim=-1)],
            dim=-2,
        )
        most = LARGEST_THIN_ANGLE[X.dtype]
        angle = -(lr * norm).clamp(max=most)  # rounding leaves eps of a normal D
        E, squarings = expm_minus_identity(B, B @ B, angle, bound, most)
        Y = torch.baddbmm(X, X, E[:, :k, :k]).baddbmm_(W / c, E[:, k:, :k])
    polish_(Y)  # the basis assumes an orthonormal X: its error could grow from step to step
    return _polished_where(Y, squarings - FEW_THIN_SQUARINGS)


def _polished_where(
    Y: Float[Tensor, "n d k"], squarings: Float[Tensor, "n"]
) -> Float[Tensor, "n d k"]:
    """Newton-Schulz steps as in `polish_`: one after any squaring, two after many."""
    with full_precision():
        for least in range(num_rounds((squarings > 0) + 1 * (squarings > FEW_SQUARINGS), 2, Y)):
            live = squarings > least * FEW_SQUARINGS
            G, Z = torch.empty_like(Y[:, : Y.shape[-1]]), torch.empty_like(Y)
            multiply_where_(G, Y.mT, Y, live)
            multiply_where_(Z, Y, G, live, Y, -0.5, 1.5)
            Y = torch.where(live[:, None, None], Z, Y)
    return Y
