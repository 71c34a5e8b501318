r"""$\exp(A) - I$ of skew matrices of any norm, in three products where the norm is small.

The identity is left out, so the increment of a point keeps more digits than the point. Nothing here
waits for the device: the device decides how often to square, see `multiply_where_`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..multiply_where import choose_buffer, multiply_where_, num_rounds
from ..norms import frobenius

LARGEST_NORM = {torch.float32: 0.5, torch.float64: 0.75}
"""Largest norm at which the series is used: it is accurate to 5e-9 in float32 and 2e-17 in float64.
"""

FEW_SQUARINGS = 8
"""Most squarings after which one polish suffices."""

FEW_TERMS = 0.04
"""Below this norm four terms are accurate to 1e-9, so float32 needs no more."""


def spectral_bound(A2: Float[Tensor, "n d d"]) -> Float[Tensor, "n"]:
    r"""A bound on the spectral norm of skew matrices, in float64, given their squares.

    $\sigma_1 \le (\|A^2\|_F^2 / 2)^{1/4}$, because singular values come in pairs. For a random
    matrix this bound is $d^{1/4}$ times too large; the Frobenius norm of A and its largest row sum
    are $d^{1/2}$ times too large.
    """
    return (frobenius(A2) / math.sqrt(2)).sqrt()


def expm_minus_identity(
    U: Float[Tensor, "n d d"],
    U2: Float[Tensor, "n d d"],
    angle: Float[Tensor, "n"],
    bound: Float[Tensor, "n"],
    most: float,
) -> tuple[Float[Tensor, "n d d"], Float[Tensor, "n"]]:
    r"""$\exp(a U) - I$ for a factor a and a bound on the norm of each matrix; `U2` is overwritten.

    Args:
        U: Skew matrices, or similar to such.
        U2: Their squares.
        angle: The factors a, in float64.
        bound: Bounds on the norms of `U`, in float64.
        most: Upper limit of the product of both; larger ones are cut to it.

    Returns:
        The results, and how often each was squared; each squaring doubles its error.
    """
    dtype = U.dtype
    norm = (angle.abs() * bound).clamp(max=most)
    squarings = (norm / LARGEST_NORM[dtype]).log2().ceil().clamp(min=0)
    # Where this overflows, the bound is zero, and so is U.
    scale = angle.sign() * torch.where(bound > 0, norm / bound, 0) * torch.exp2(-squarings)
    c = scale.to(dtype)[:, None, None]
    A, A2 = U * c, U2.mul_(c.square())
    on_host = U.device.type == "cpu"
    E = series(A, A2, few=on_host and bool(norm.max() <= FEW_TERMS))
    rounds = math.ceil(math.log2(most / LARGEST_NORM[dtype]))
    return _squared(E, squarings, rounds), squarings


def series(
    A: Float[Tensor, "n d d"], A2: Float[Tensor, "n d d"], few: bool
) -> Float[Tensor, "n d d"]:
    r"""$\exp(A) - I$ for norms up to `LARGEST_NORM`, by `few` terms up to `FEW_TERMS`."""
    return _sixteen_terms(A, A2) if A.dtype == torch.float64 else _eight_terms(A, A2, few)


def _eight_terms(A: Float[Tensor, "n d d"], A2: Float[Tensor, "n d d"], few: bool) -> Tensor:
    r"""$\sum_{1 \le n \le 8} A^n / n!$ in two products besides the square (Bader et al. 2019).

    The first product gives the terms 3 and 4, which may be enough.
    """
    P = A2 @ torch.add(A, A2, alpha=1 / 4)  # A^3 + A^4 / 4
    if few:
        return torch.add(A, A2, alpha=1 / 2).add_(P, alpha=1 / 6)
    root = math.sqrt(177)
    x = (1 + root) / 132
    left = (A2 * (2 / 3)).add_(P, alpha=x)
    right = A * (11 * (root - 1) / 840)
    right.add_(A2, alpha=11 * (root - 9) / 3360).add_(P, alpha=x * (89 - root) / 2240)
    E = torch.add(A, A2, alpha=(857 - 58 * root) / 630)
    E.add_(left, alpha=(29 * root - 271) / 210)
    return E.baddbmm_(left, right)


def _sixteen_terms(A: Float[Tensor, "n d d"], A2: Float[Tensor, "n d d"]) -> Tensor:
    r"""$\sum_{1 \le n \le 16} A^n / n!$ in five products besides the square."""
    A3, A4 = A2 @ A, A2 @ A2
    f = [1 / math.factorial(n) for n in range(17)]
    E = A4 * f[16]
    for n in (12, 8, 4):
        E.add_(A, alpha=f[n + 1]).add_(A2, alpha=f[n + 2]).add_(A3, alpha=f[n + 3])
        E.diagonal(dim1=-2, dim2=-1).add_(f[n])
        E = E @ A4
    return E.add_(A).add_(A2, alpha=f[2]).add_(A3, alpha=f[3])


def _squared(
    E: Float[Tensor, "n d d"], times: Float[Tensor, "n"], most: int
) -> Float[Tensor, "n d d"]:
    """$(I + E)^{2^{times}} - I$ of each matrix; `times` is at most `most`."""
    rounds = num_rounds(times, most, E)
    if not rounds:
        return E
    live = times > torch.arange(rounds, device=E.device)[:, None]
    now, then = E, torch.empty_like(E)
    for r in range(rounds):
        multiply_where_(then, now, now, live[r], now, 1.0, 2.0)
        now, then = then, now
    return choose_buffer(times, rounds, now, then)
