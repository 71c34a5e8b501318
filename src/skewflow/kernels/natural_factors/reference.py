r"""Natural steps by factors: gradients divided by the second moment of their right factors.

The r pairs of $AB^\top$ are scaled to $|a_j| = 1$. With $R = \lambda I + \sum BB^\top$ over all
steps, and its least eigenvalue $\rho$, the gradient's tangent part $(I - XX^\top)AB^\top +
X\,\mathrm{skew}(X^\top AB^\top)$ is replaced by the direction

$$c\,\bigl((I - XX^\top)AB^\top R^{-1}
  + \rho X\,\mathrm{skew}(R^{-1}X^\top AB^\top R^{-1})\bigr).$$

If pairs are the gradients of samples, R is the right Kronecker factor of their second moment, as
Shampoo has it; FOOF and K-FAC leave out the lengths of the a. It divides the part that leaves the
span of X. Within the span both sides count, and $\rho$ ensures that a plane is never divided by
less than the larger of its two moments. The direction descends wherever the gradient does and has
the rank of the factors; for an isotropic R it is the gradient's direction over R. With the scale c
the first step, for orthogonal factors of equal length, is that of the gradient where it leaves the
span.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...geometry.precision import full_precision, users_precision
from ..update import LARGEST_GRADIENT

DAMPING = 0.25
"""Initial moment as a fraction of the first gradient's moment, made isotropic."""

GROWTH = 10.0
"""The moment restarts at a gradient that is this many times longer than the one it started with:
lambda and c would be too small for it, and float32 cannot hold both scales."""

ROUNDING = 4.0
"""Allowance for rounding of S, in rounding errors of its largest entries; it keeps I + S
definite."""


def natural_factors(
    state: tuple[Float[Tensor, "n k k"], Float[Tensor, "2 n 1 1"], Float[Tensor, "n k 1"]],
    X: Float[Tensor, "n d k"],
    A: Float[Tensor, "n d r"],
    B: Float[Tensor, "n k r"],
) -> tuple[Float[Tensor, "n d r"], Float[Tensor, "n k r"], Bool[Tensor, ""]]:
    r"""Factors of the direction; their moment is added to that in the state.

    The state holds $H = \lambda R^{-1}$, which r columns change in $O(k^2 r)$ (Woodbury), the two
    numbers $\sqrt\lambda$ and $c / \sqrt\lambda$, and a vector near the eigenvector of H with the
    largest eigenvalue $\lambda / \rho$. A product with H improves the vector at each step; if the
    diagonal of H has a larger entry, the estimate is that entry, and the vector restarts there. Two
    corrections prevent that rounding makes H indefinite: R takes slightly less than the full
    moment, and a fraction of the eigenvalue, as large as rounding, is added to the diagonal. So in
    float32 R forgets old samples over thousands of steps.

    Args:
        state: H, the numbers and the vector; written to.
        X: Points.
        A: Left factors of the gradient.
        B: Right factors.

    Returns:
        Both factors, and whether everything was finite; if not, the state has not changed.
    """
    H, numbers, v = state
    damping, scale = numbers
    k, r = B.shape[-2:]
    lengths = _norm(A, -2)
    A, B = A / lengths.clamp_min(torch.finfo(A.dtype).tiny), B * lengths
    norm, fraction = _norm(B, (-2, -1)), (DAMPING / k) ** 0.5
    usable = (norm * lengthening(k, r) <= LARGEST_GRADIENT[X.dtype]).all()  # false for NaN
    some = norm * fraction >= torch.finfo(X.dtype).tiny  # a smaller one is a gradient of zeros
    restart = (norm * fraction > GROWTH * damping) & some & usable
    _restart_(H, v, restart)
    damping = torch.where(restart, norm * fraction, damping)
    scale = torch.where(restart, damping * lengthening(k, r), scale)
    unit = 1 / torch.where(damping > 0, damping, 1)  # after gradients of zeros only it is 0
    B, square = B * unit, (norm * unit).square()
    with users_precision(X):
        P = X.mT @ A
    with full_precision():
        HB, HP = torch.split(H @ torch.cat([B, P, v], dim=-1), [r, r + 1], dim=-1)
        diagonal = H.diagonal(dim1=-2, dim2=-1)
        rounding = ROUNDING * torch.finfo(X.dtype).eps * diagonal.amax(-1)[:, None, None] * square
        root = _inverse_root(B.mT @ HB, 1 + rounding)
        T = root @ HB.mT  # H becomes H - T^T T
        B_new = T.mT @ root
        HP = torch.baddbmm(HP, T.mT, T @ torch.cat([P, v], dim=-1), alpha=-1)
    HP, Hv = HP[..., :r], HP[..., r:]
    largest, v_new = _largest(Hv, diagonal - T.square().sum(-2))
    with users_precision(X):
        A_new = torch.baddbmm(A, X, torch.addcmul(P, HP, 1 / largest, value=-1), alpha=-1)
        A_new.mul_(scale)
    grown = torch.stack([damping, scale])
    total = A_new.sum() + B_new.sum() + T.sum() + v_new.sum() + grown.sum()
    finite = torch.isfinite(total) & usable
    with full_precision():
        T = torch.where(finite, T, 0)
        H.baddbmm_(T.mT, T, alpha=-1)
    diagonal.add_(torch.where(finite, largest * torch.finfo(X.dtype).eps, 0)[..., 0])
    numbers.copy_(torch.where(finite, grown, numbers))
    v.copy_(torch.where(finite, v_new, v))
    return A_new, B_new, finite


def lengthening(k: int, r: int) -> float:
    """The largest ratio of the lengths of a direction and its gradient."""
    return 1 + k / (DAMPING * r)


def _norm(F: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Norms in float64, where squares neither overflow nor underflow."""
    norm = torch.linalg.vector_norm(F, dim=dim, keepdim=True, dtype=torch.float64)
    return norm.to(F.dtype)


def _restart_(H: Tensor, v: Tensor, restart: Bool[Tensor, "n 1 1"]) -> None:
    """Reset H to the identity and v to a unit vector where the moment restarts."""
    if H.device.type == "cpu" and not restart.any():
        return
    H.mul_(~restart)
    H.diagonal(dim1=-2, dim2=-1).add_(restart[..., 0])
    v.masked_fill_(restart, v.shape[-2] ** -0.5)


def _largest(
    Hv: Float[Tensor, "n k 1"], diagonal: Float[Tensor, "n k"]
) -> tuple[Float[Tensor, "n 1 1"], Float[Tensor, "n k 1"]]:
    """A lower bound of the largest eigenvalue of H, and a unit vector towards it."""
    length = torch.linalg.vector_norm(Hv, dim=-2, keepdim=True)
    entry, place = diagonal[..., None].max(dim=-2, keepdim=True)
    axis = torch.arange(Hv.shape[-2], device=Hv.device)[:, None] == place
    v = torch.where(entry > 1.1 * length, axis.to(Hv), Hv / length)
    return torch.maximum(length, entry), v


def _inverse_root(S: Float[Tensor, "n r r"], one: Float[Tensor, "n 1 1"]) -> Float[Tensor, "n r r"]:
    r"""$L^{-1}$ for the Cholesky factor L of I + S; `one` is 1 plus an allowance for rounding."""
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device).expand(S.shape)
    L, info = torch.linalg.cholesky_ex(one * eye + S)
    inverse = torch.linalg.solve_triangular(L, eye, upper=False)
    return torch.where(info[:, None, None] == 0, inverse, torch.nan)
