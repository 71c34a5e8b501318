"""Bounds of a polar step and the intervals of its iteration, one definition for all devices."""

import math
from functools import cache

import torch
from torch import Tensor

LONGEST = 2.0**12
"""Largest Frobenius norm of a tangent step, so that its square does not overflow; longer steps are
cut. Directions are cut to it, too, because rounding leaves normal parts that are not tangent."""

WIDEST = 6.5
r"""Largest bound on $\|Y^\top Y - I\|$; longer steps are cut to it. Then two Newton-Schulz steps in
float32, or four in float64, suffice for any learning rate."""

LARGEST_TURN = math.atan(math.sqrt(WIDEST))
"""Largest rotation of a plane in one step: 69 degrees."""

WIDTH = {torch.float32: 0.05, torch.float64: 5e-4}
r"""Largest $\|Y^\top Y - I\|$ for the series of four terms; the next term is then 8e-8 in float32
and 8e-18 in float64."""

ERROR = {torch.float32: 2e-7, torch.float64: 2e-16}
r"""Largest omitted term of a shorter series, over $\sqrt k$; it leaves twice as much in $\|Y^\top Y
- I\|_F$. Errors do not add up, because every step corrects the previous one."""

SHORTEST = {dtype: math.sqrt(torch.finfo(dtype).tiny) for dtype in (torch.float32, torch.float64)}
"""Below this value squares underflow to zero."""


def longest_for_one_term(X: Tensor) -> float:
    """Largest norm of P for which one term of the series is enough."""
    return math.sqrt(8 / 3 * largest_next_term(X))


def largest_next_term(X: Tensor) -> float:
    """The largest omitted term of a series that ends early."""
    return ERROR[X.dtype] * math.sqrt(X.shape[-1])


@cache
def intervals(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The lower ends of the intervals [l, 1] that the rounds go through, and their factors.

    The cubic $1.5x - 0.5x^3$ at x = a s takes the interval [l, 1] of s to [l', 1] with the largest
    l' when it has equal values at both ends: $a^2 = 3 / (1 + l + l^2)$.
    """
    low = 1 / math.sqrt(1 + WIDEST)
    rows = []
    while (1 - low**2) / (1 + low**2) > WIDTH[dtype]:
        a = math.sqrt(3 / (1 + low + low**2))
        rows.append((low, a))
        low = 1.5 * a * low - 0.5 * (a * low) ** 3
    return torch.tensor([*rows, (low, 1.0)], dtype=torch.float64).T.contiguous().to(device)
