"""The numbers of a step for compiled loops, and the update of one row's momentum."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg, attr-defined"

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit

from ...tournaments.partitions import edge_probability
from ..update import Update
from .numba_loops import fast

LARGEST_TURN = np.finfo(np.float64).max / 2
"""Largest angle of a rotation: sine and cosine are exact for finite angles and NaN for infinity."""


def as_word(value: int) -> np.uint64:
    """The two's complement of an int64, which the reference's shifts and masks see."""
    return np.uint64(value & 0xFFFFFFFFFFFFFFFF)


class LoopNumbers(NamedTuple):
    r"""The numbers of a step for the compiled loops, reals in the dtype of the point.

    $M \leftarrow \mu M + \sigma G$ and $D = a G + b M$; a plane turns by `angle` times its entry of
    $D X^\top - X D^\top$, or by Cayley's angle.
    """

    seed: np.uint64
    stream: np.uint64
    use_momentum: bool
    cayley: bool
    angle: float
    mu: np.floating[Any]
    sigma: np.floating[Any]
    a: np.floating[Any]
    b: np.floating[Any]


@lru_cache(maxsize=1024)
def loop_numbers(
    update: Update, use_momentum: bool, dtype: torch.dtype, d: int, block_size: int
) -> LoopNumbers:
    """The numbers of an update; cached, because computing them costs as much as many rotations."""
    as_real = np.float32 if dtype == torch.float32 else np.float64
    sigma = -1.0 if update.maximize else 1.0
    a, b = (sigma, update.momentum) if update.nesterov else (0.0, 1.0)
    lr = update.lr_of_draw  # of the law without a weight
    if update.angle is None:
        lr /= float(edge_probability(d, block_size))
    return LoopNumbers(
        seed=as_word(update.seed),
        stream=as_word(update.stream),
        use_momentum=use_momentum,
        cayley=update.retraction == "cayley",
        # Without momentum the loops take G itself for D, so its sign goes into the angle.
        angle=min(lr, LARGEST_TURN) * (-1 if use_momentum else -sigma),
        mu=as_real(update.momentum),
        sigma=as_real(sigma),
        a=as_real(a),
        b=as_real(b),
    )


@njit
def divisor(w, b, i, j):
    """The divisor of entry (i, j) of matrix b: 1, or the root mean square of two row moments."""
    if w.size == 0:
        return 1.0
    return math.sqrt((w[b, i] + w[b, j]) / 2)


@fast
def advance(m, g, plan):
    """The new momentum of one row, in place."""
    mu, sigma = plan.mu, plan.sigma
    for t in range(m.size):
        m[t] = mu * m[t] + sigma * g[t]


@fast
def fill_direction(out, g, m, plan):
    """The direction of one row, from its new momentum."""
    a, b = plan.a, plan.b
    for t in range(m.size):
        out[t] = a * g[t] + b * m[t]
