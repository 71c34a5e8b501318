r"""Natural steps by factors: gradients divided by the second moment of their right factors.

The r pairs of $AB^\top$ are scaled to $|a_j| = 1$. With $R = \lambda I + \sum BB^\top$ over all
steps, and its least eigenvalue $\rho$, the direction is, in the place of the gradient's tangent
part $(I - XX^\top)AB^\top + X\,\mathrm{skew}(X^\top AB^\top)$,

$$c\,\bigl((I - XX^\top)AB^\top R^{-1}
  + \rho X\,\mathrm{skew}(R^{-1}X^\top AB^\top R^{-1})\bigr).$$

If pairs are the gradients of samples, R is the right Kronecker factor of their second moment, as
Shampoo has it; FOOF and K-FAC leave out the lengths of the a. It divides what leaves the span of
X. Within the span both sides count, and $\rho$ sees to it that a plane is never divided by less
than the larger of its two moments. The direction descends wherever the gradient does, has the rank
of the factors, and where R is isotropic is the gradient's, divided by it. The scale c makes a first
step with orthogonal factors of one length that of the gradient, where it leaves the span.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..geometry.precision import full_precision, users_precision
from ..kernels.update import LARGEST_GRADIENT
from ._capturing import is_capturing

DAMPING = 0.25
"""The moment begins as this part of the first gradient's, made isotropic."""

KEYS = ("inverse_moment", "moment_numbers", "moment_direction")


def natural_factors(
    state: dict[str, Any],
    X: Float[Tensor, "n d k"],
    A: Float[Tensor, "n d r"],
    B: Float[Tensor, "n k r"],
) -> tuple[Float[Tensor, "n d r"], Float[Tensor, "n k r"], Bool[Tensor, ""]]:
    r"""Factors of the direction; their moment is added to that in the state.

    The state holds $H = \lambda R^{-1}$, which r columns change in $O(k^2 r)$ (Woodbury), the two
    numbers $\sqrt\lambda$ and $c / \sqrt\lambda$, and a vector near the eigenvector of H with the
    largest eigenvalue $\lambda / \rho$, which a product with H brings nearer at each step. So that
    rounding never makes H indefinite, a share of that eigenvalue as large as rounding is added to
    its diagonal: over thousands of steps in float32 R forgets.

    Args:
        state: Of the weight.
        X: Its points.
        A: Left factors of the gradient.
        B: Right factors.

    Returns:
        Both factors, and whether everything was finite: if not, the state is as it was.
    """
    H, numbers, v = _memory(state, X)
    damping, scale = numbers
    k, r = B.shape[-2:]
    lengths = _norm(A, -2)
    A, B = A / lengths.clamp_min(torch.finfo(A.dtype).tiny), B * lengths
    norm = _norm(B, (-2, -1))
    begun = damping > 0  # a gradient of zeros says nothing of the scale
    damping = torch.where(begun, damping, norm * (DAMPING / k) ** 0.5)
    scale = torch.where(begun, scale, damping * (1 + k / (DAMPING * r)))
    B = B / torch.where(damping > 0, damping, 1)
    with users_precision(X):
        P = X.mT @ A
    with full_precision():
        HB, HP = torch.split(H @ torch.cat([B, P, v], dim=-1), [r, r + 1], dim=-1)
        root = _inverse_root(B.mT @ HB)
        T = root @ HB.mT  # H becomes H - T^T T
        B_new = T.mT @ root
        HP = torch.baddbmm(HP, T.mT, T @ torch.cat([P, v], dim=-1), alpha=-1)
    HP, Hv = HP[..., :r], HP[..., r:]
    largest = torch.linalg.vector_norm(Hv, dim=-2, keepdim=True)
    v_new = Hv / largest
    with users_precision(X):
        A_new = torch.baddbmm(A, X, torch.addcmul(P, HP, 1 / largest, value=-1), alpha=-1)
        A_new.mul_(scale)
    grown = torch.stack([damping, scale])
    total = A_new.sum() + B_new.sum() + T.sum() + v_new.sum() + grown.sum()
    finite = torch.isfinite(total) & (norm <= LARGEST_GRADIENT[X.dtype]).all()
    with full_precision():
        T = torch.where(finite, T, 0)
        H.baddbmm_(T.mT, T, alpha=-1)
    share = torch.where(finite, largest * torch.finfo(X.dtype).eps, 0)
    H.diagonal(dim1=-2, dim2=-1).add_(share[..., 0])
    numbers.copy_(torch.where(finite, grown, numbers))
    v.copy_(torch.where(finite, v_new, v))
    return A_new, B_new, finite


def least_damping(state: dict[str, Any]) -> float:
    """The least root of a damping, by which gradients are divided; one before there is any."""
    if KEYS[1] not in state:
        return 1.0
    damping = state[KEYS[1]][0]
    return float(torch.where(damping > 0, damping, 1).min())


def _memory(state: dict[str, Any], X: Tensor) -> list[Tensor]:
    """What is known of the moment: its inverse, its numbers, a vector; nothing at first."""
    if is_capturing():
        raise RuntimeError(
            "a natural step cannot be captured in a CUDA graph, since the libraries that factorise "
            "matrices cannot be: step outside of the graph, or without natural=True."
        )
    if KEYS[0] not in state:
        n, _, k = X.shape
        anywhere = torch.randn(k, 1, generator=torch.Generator().manual_seed(0))
        inverse = torch.eye(k, dtype=X.dtype, device=X.device)
        first = (anywhere / anywhere.norm()).to(X)
        made = (inverse.repeat(n, 1, 1), X.new_zeros(2, n, 1, 1), first.repeat(n, 1, 1))
        state.update(zip(KEYS, made, strict=True))
    for key in KEYS:  # the parameter may have been moved
        if state[key].dtype != X.dtype or state[key].device != X.device:
            state[key] = state[key].to(X)
    return [state[key] for key in KEYS]


def _norm(F: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Norms over dimensions that stay, in float64, where squares neither overflow nor vanish."""
    norm = torch.linalg.vector_norm(F, dim=dim, keepdim=True, dtype=torch.float64)
    return norm.to(F.dtype)


def _inverse_root(S: Float[Tensor, "n r r"]) -> Float[Tensor, "n r r"]:
    r"""$L^{-1}$ for the Cholesky factor L of I + S; NaN where there is none."""
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device).expand(S.shape)
    L, info = torch.linalg.cholesky_ex(eye + S)
    inverse = torch.linalg.solve_triangular(L, eye, upper=False)
    return torch.where(info[:, None, None] == 0, inverse, torch.nan)
