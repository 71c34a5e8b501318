r"""The exact step for a gradient $G = AB^\top$ of low rank, without forming G or $\Omega$.

With $U = A$ and $V = XB$ the generator is $\Omega = UV^\top - VU^\top = LJL^\top$ for $L = [U\,V]$
and $J = \begin{bmatrix}0 & I\\ -I & 0\end{bmatrix}$, so that its powers stay in the span of L:
$\exp(\eta\Omega)X = X + \eta L\,\varphi(\eta JM)\,J(L^\top X)$ with $M = L^\top L$ and
$\varphi(Z) = (e^Z - 1)/Z$ of a matrix with 2r rows. Not in the paper; with Cayley's transform
instead of the exponential it is due to Wen and Yin (2013).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..geometry.precision import full_precision
from ..kernels.multiply_where import multiply_where_, num_rounds
from ._exponential import choose_buffer, frobenius

LONGEST = 32.0
r"""The step is cut to this $\eta\|L\|^2$, which bounds its angles: rounding grows with it."""

LARGEST_NORM = {torch.float32: 2.0, torch.float64: 0.75}
"""Of the series: its next term is 2e-11 and 1e-18 there."""

BREAK_EVEN = {"cpu": (0.25, 0.5), "cuda": (0.25, 0.5)}
"""Largest r / k at which the factored step costs less than the dense one, where 2k >= d and where
2k < d. Measured on one core of a CPU by `benchmarks/factored.py`, and not yet on CUDA."""


def is_worth_it(rank: int, d: int, k: int, device: torch.device) -> bool:
    """Whether a factored step of this rank costs less than forming the gradient."""
    square, thin = BREAK_EVEN["cuda" if device.type == "cuda" else "cpu"]
    return rank <= (thin if 2 * k < d else square) * k


def factored_step_(
    X: Float[Tensor, "n d k"],
    A: Float[Tensor, "n d r"],
    B: Float[Tensor, "n k r"],
    lr: float,
    V: Float[Tensor, "n d r"] | None = None,
) -> Bool[Tensor, "n"]:
    r"""$X \leftarrow \exp(-lr\,\Omega)X$ in place, in $O(dkr)$ where r is small.

    $\Omega$ is skew whatever is rounded in U and V, and $L^\top X$ is computed, not taken from
    $X^\top X = I$: so an error of X does not grow. The small matrices are float64.

    Args:
        X: Points.
        A: Left factors of the gradients.
        B: Right factors.
        lr: Step size.
        V: The products X B, if they are known.

    Returns:
        Which factors were finite; the other points stay as they are.
    """
    r = A.shape[-1]
    with full_precision():
        V = X @ B if V is None else V
        u, v = (torch.linalg.vector_norm(Y, dim=-2, dtype=torch.float64) for Y in (A, V))
        # Columns of equal length make L as short as its generator lets it be.
        balance = torch.where((u > 0) & (v > 0), (v / u).sqrt(), 1).to(X.dtype)[:, None]
        L = torch.cat([A * balance, V / balance], dim=-1)
        wide = L.to(torch.float64)
        M = wide.mT @ wide
        finite = torch.isfinite(M).flatten(1).all(-1)
        M = torch.where(finite[:, None, None], M, 0)
        L = torch.where(finite[:, None, None], L, 0)
        eta = -(LONGEST / frobenius(M @ M).sqrt()).clamp(max=lr)
        eta = torch.where(torch.isfinite(eta), eta, 0)[:, None, None]
        Z = eta * torch.cat([M[:, r:], -M[:, :r]], dim=-2)  # eta J M
        T = L.mT @ X
        JT = torch.cat([T[:, r:], -T[:, :r]], dim=-2)
        C = (eta * _phi(Z, LARGEST_NORM[X.dtype])).to(X.dtype) @ JT
        X.baddbmm_(L, C)
    return finite


def _phi(Z: Float[Tensor, "n r r"], theta: float) -> Float[Tensor, "n r r"]:
    r"""$(e^Z - 1)/Z$ of matrices similar to skew ones, of norm at most `LONGEST`.

    What the series needs is a bound on the roots of the powers' norms, which near a minimum are far
    below the norm of Z: two of them bound all that follow.
    """
    Z2 = Z @ Z
    Z3, Z4 = Z2 @ Z, Z2 @ Z2
    bound = torch.maximum(frobenius(Z2).sqrt(), frobenius(Z3) ** (1 / 3))
    halvings = (bound / theta).log2().ceil().clamp(min=0)
    h = torch.exp2(-halvings)[:, None, None]
    Z, Z2, Z3, Z4 = Z * h, Z2 * h**2, Z3 * h**3, Z4 * h**4
    f = [1 / math.factorial(n + 1) for n in range(16)]
    P = torch.zeros_like(Z)
    for n in (12, 8, 4, 0):
        P = P @ Z4 if n < 12 else P
        P.add_(Z, alpha=f[n + 1]).add_(Z2, alpha=f[n + 2]).add_(Z3, alpha=f[n + 3])
        P.diagonal(dim1=-2, dim2=-1).add_(f[n])
    size = Z.shape[-1]
    most = math.ceil(math.log2(LONGEST / theta * size**0.25))
    rounds = num_rounds(halvings, most, Z)
    if not rounds:
        return P
    # With E = e^Z - 1 a doubling of Z is E <- E (E + 2) and P <- P (E + 2) / 2.
    now = torch.cat([Z @ P, P], dim=-2)
    then, live = torch.empty_like(now), halvings > torch.arange(rounds, device=Z.device)[:, None]
    for live_r in live:
        multiply_where_(then, now, now[:, :size], live_r, now, 1.0, 2.0)
        now, then = then, now
    return choose_buffer(halvings, rounds, now, then)[:, size:] * h
