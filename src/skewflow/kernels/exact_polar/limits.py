"""What bounds a polar step, and what its iterations go through: one definition for all devices."""

import math
from functools import cache

import torch
from torch import Tensor

LONGEST = 2.0**12
"""The tangent step is cut to this Frobenius norm, so that its square does not overflow. The
direction, too: what rounding leaves of one that is normal is not tangent."""

WIDEST = 6.5
r"""Largest bound on $\|Y^\top Y - I\|$: what is longer is cut to it. Then two Newton-Schulz steps
are enough for any learning rate, in float64 four."""

LARGEST_TURN = math.atan(math.sqrt(WIDEST))
"""The most by which a plane turns: 69 degrees."""

WIDTH = {torch.float32: 0.05, torch.float64: 5e-4}
r"""Largest $\|Y^\top Y - I\|$ for the series of four terms: its next is 8e-8 and 8e-18 there."""

ERROR = {torch.float32: 2e-7, torch.float64: 2e-16}
r"""Largest next term of a shorter series, over $\sqrt k$; twice as much is left of
$\|Y^\top Y - I\|_F$. Nothing adds up: every step corrects what the one before it has left."""

SHORTEST = {dtype: math.sqrt(torch.finfo(dtype).tiny) for dtype in (torch.float32, torch.float64)}
"""Where squares vanish."""


def longest_for_one_term(X: Tensor) -> float:
    """Largest norm of P for which one term of the series is enough."""
    return math.sqrt(8 / 3 * largest_next_term(X))


def largest_next_term(X: Tensor) -> float:
    """The largest next term of a series that ends early."""
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
