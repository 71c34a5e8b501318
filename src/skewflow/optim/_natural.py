r"""Natural steps by factors: gradients divided by the second moment of their right factors.

The r pairs of $AB^\top$, scaled to $|a_j| = 1$, are gradients of samples, or of what is like one.
With $R = \lambda I + \sum BB^\top$ over all steps the direction is, instead of the gradient's
tangent part $(I - XX^\top)AB^\top + X\,\mathrm{skew}(X^\top AB^\top)$,

$$c\,\bigl((I - XX^\top)AB^\top R^{-1}
  + \tfrac{\mathrm{tr}R}{k} X\,\mathrm{skew}(R^{-1}X^\top AB^\top R^{-1})\bigr),$$

the Fisher information's right Kronecker factor (K-FAC; FOOF) where the point leaves its span, and
on both sides of what turns it within. It descends wherever the gradient does, and has the rank of
the factors. Where R is isotropic it is the gradient's, times c / R. The scale c makes a first step
with orthogonal factors that of the gradient, so that rates are those of other steps.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..geometry.precision import full_precision, users_precision
from ._capturing import is_capturing

DAMPING = 0.25
"""The moment begins as this part of the first gradient's, made isotropic: with more, online PCA
takes more steps, and with less no fewer."""

Direction = tuple[Float[Tensor, "n d r"], Float[Tensor, "n k r"], Bool[Tensor, ""]]
"""Two factors, and whether they are finite."""


def natural_factors(
    state: dict[str, Any],
    X: Float[Tensor, "n d k"],
    A: Float[Tensor, "n d r"],
    B: Float[Tensor, "n k r"],
) -> Direction:
    r"""Factors of the direction; their moment is added to that in the state.

    The state holds $\lambda R^{-1}$, which r columns change in $O(k^2 r)$ (Woodbury), and three
    numbers: $\sqrt\lambda$, $c / \sqrt\lambda$ and $\mathrm{tr}R / \lambda k$.

    Args:
        state: Of the weight.
        X: Its points.
        A: Left factors of the gradient.
        B: Right factors.

    Returns:
        Both factors, and whether everything was finite: if not, the state is as it was.
    """
    H, numbers = _memory(state, X)
    damping, scale, mean = numbers
    k, r = B.shape[-2:]
    lengths = _norm(A, -2)
    A, B = A / lengths.clamp_min(torch.finfo(A.dtype).tiny), B * lengths
    norm = _norm(B, (-2, -1))
    begun = damping > 0  # a gradient of zeros says nothing of the scale
    damping = torch.where(begun, damping, norm * (DAMPING / k) ** 0.5)
    scale = torch.where(begun, scale, damping * (1 + k / (DAMPING * r)))
    unit = 1 / torch.where(damping > 0, damping, 1)
    B, mean = B * unit, mean + (norm * unit).square() / k
    with users_precision(X):
        P = X.mT @ A
    with full_precision():
        HB, HP = torch.split(H @ torch.cat([B, P], dim=-1), r, dim=-1)
        root = _inverse_root(B.mT @ HB)
        T = root @ HB.mT  # H becomes H - T^T T
        B_new = T.mT @ root
        HP = torch.baddbmm(HP, T.mT, T @ P, alpha=-1)
    with users_precision(X):
        A_new = torch.baddbmm(A, X, torch.addcmul(P, mean, HP, value=-1), alpha=-1).mul_(scale)
    grown = torch.stack([damping, scale, mean])
    finite = torch.isfinite(A_new.sum() + B_new.sum() + T.sum() + grown.sum())
    with full_precision():
        T = torch.where(finite, T, 0)
        H.baddbmm_(T.mT, T, alpha=-1)
    numbers.copy_(torch.where(finite, grown, numbers))
    return A_new, B_new, finite


def _memory(state: dict[str, Any], X: Tensor) -> tuple[Tensor, Tensor]:
    """What is known of the moment, its inverse and the three numbers; nothing at first."""
    if is_capturing():
        raise RuntimeError(
            "a natural step cannot be captured in a CUDA graph, since the libraries that factorise "
            "matrices cannot be: step outside of the graph, or without natural=True."
        )
    if "inverse_moment" not in state:
        n, _, k = X.shape
        state["inverse_moment"] = torch.eye(k, dtype=X.dtype, device=X.device).repeat(n, 1, 1)
        state["moment_numbers"] = X.new_zeros(3, n, 1, 1)
        state["moment_numbers"][2] = 1
    for key in ("inverse_moment", "moment_numbers"):  # the parameter may have been moved
        if state[key].dtype != X.dtype or state[key].device != X.device:
            state[key] = state[key].to(X)
    return state["inverse_moment"], state["moment_numbers"]


def _norm(F: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Norms over dimensions that stay, in float64, where squares neither overflow nor vanish."""
    norm = torch.linalg.vector_norm(F, dim=dim, keepdim=True, dtype=torch.float64)
    return norm.to(F.dtype)


def _inverse_root(S: Float[Tensor, "n r r"]) -> Float[Tensor, "n r r"]:
    r"""$L^{-1}$ for the Cholesky factor L of I + S.

    Where rounding has left an inverse moment that is not positive, L is a multiple of the identity
    above it: the moment then takes in less of the gradient than there is.
    """
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device).expand(S.shape)
    L, info = torch.linalg.cholesky_ex(eye + S)
    above = 1 + torch.linalg.vector_norm(S, dim=(-2, -1), keepdim=True)
    L = torch.where(info[:, None, None] == 0, L, above.sqrt() * eye)
    return torch.linalg.solve_triangular(L, eye, upper=False)
