"""`step_pairs` with several draws in numba: many matchings for one gradient, in one call."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, attr-defined"

import math

import numpy as np
from jaxtyping import Float, Int
from numba import prange
from torch import Tensor

from .._runtime.numba_loops import Loops, as_array, mark_written
from .._runtime.update_cpu import divisor, loop_numbers
from ..permutation.cpu import fill_matching
from ..permutation.reference import num_rounds_of_sweep
from ..update import Update, direction
from .cpu import PAIRS_PER_TASK, _plain_entry, _turn, plane_angle


def step_draws_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""] | int,
    update: Update,
    moments: Float[Tensor, "n d"] | None = None,
) -> None:
    """`step_pairs` with `num_draws` above 1, in place on CPU tensors: `X` and `M` change.

    All angles are those of the point and the direction before the first rotation, so both are
    copied.

    Args:
        X: Points, n matrices with orthonormal columns, float32 or float64.
        G: Euclidean gradients.
        M: Momentum buffers, or None.
        step: Steps done before.
        update: Step size, momentum, seed and number of draws.
        moments: Second moments of the rows, or None.

    Example:
        >>> import torch
        >>> X, G = torch.eye(4).repeat(1, 1, 1), torch.ones(1, 4, 4).triu()
        >>> step_draws_(X, G, None, 0, Update(lr=0.1, num_draws=3))
        >>> bool(torch.allclose(X.mT @ X, torch.eye(4), atol=1e-6))
        True
    """
    D, new = direction(G.to(X.dtype), M, update)
    at, D = X.detach().clone(), D.detach().contiguous()
    at = at if at.is_contiguous() else at.contiguous()
    turned = [at.clone()] if new is None else [at.clone(), new.detach().contiguous().clone()]
    d = X.shape[1]
    plan = loop_numbers(update, True, X.dtype, d, 2)  # D has the sign of an ascent
    # Independent matchings are the first rounds of as many sweeps.
    apart = num_rounds_of_sweep(d) if update.independent else 1
    times = np.uint64(int(step) * update.num_draws * apart), np.uint64(apart), update.num_draws
    arrays = [A.numpy() for A in (turned[0], turned[-1], at, D)]
    work = X.numel() * update.num_draws
    _turn_draws(work, *arrays, len(turned) > 1, times, plan, as_array(moments))
    for A, rows in zip((X, M), turned, strict=False):
        assert A is not None
        A.copy_(rows)
    mark_written(X, M)


@Loops
def _turn_draws(x, m, at, direction, with_momentum, times, plan, w):
    (n, d, _), (start, apart, draws) = x.shape, times
    num_pairs = (d + 1) // 2
    tasks = (num_pairs + PAIRS_PER_TASK - 1) // PAIRS_PER_TASK
    pairs = np.empty((n, 2, num_pairs), np.uint32)
    for draw in range(draws):
        time = start + np.uint64(draw) * apart
        for b in prange(n):
            fill_matching(pairs[b], 0, d, plan.seed, plan.stream + np.uint64(b), time)
        for task in prange(n * tasks):
            b, first = task // tasks, task % tasks * PAIRS_PER_TASK
            for q in range(first, min(first + PAIRS_PER_TASK, num_pairs)):
                i, j = pairs[b, 0, q], pairs[b, 1, q]
                if i == j:  # the unpaired row of an odd number
                    continue
                omega = _plain_entry(at[b, i], at[b, j], direction[b, i], direction[b, j])
                theta = plane_angle(np.float64(omega) / divisor(w, b, i, j), plan)
                c, s = x.dtype.type(math.cos(theta)), x.dtype.type(math.sin(theta))
                _turn(x[b, i], x[b, j], c, s)
                if with_momentum:
                    _turn(m[b, i], m[b, j], c, s)
