"""Steps of pairs by an angle, in numba and in place: all entries first, then the rotation.

The scale of a step needs the entries of all pairs, so the points are read twice. The bits do not
depend on the number of threads.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg, attr-defined"

import numpy as np
from jaxtyping import Float, Int
from numba import njit, prange
from torch import Tensor

from .._runtime.memory_cpu import memories, prefetch
from .._runtime.numba_loops import Loops, addresses, mark_written, strides
from .._runtime.update_cpu import LARGEST_TURN, advance, loop_numbers
from ..permutation.cpu import fill_matching
from ..permutation.reference import num_rounds_of_sweep
from ..rotate_pairs.cpu import (
    LINES_PER_TASK,
    PAIRS_PER_TASK,
    _begin,
    _entry,
    _fill_partners,
    _in_layout,
    _line,
    _sum_lines,
    _turn,
    _turn_line,
)
from ..update import Update
from .reference import SOFTNESS, planes_of


def step_pairs_by_angle_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""] | int,
    update: Update,
    moments: None = None,
) -> None:
    """`step_by_angle` of pairs in place on CPU tensors: `X` and `M` change, `G` does not.

    Fast for contiguous rows and for contiguous columns; other strides go through a copy.

    Args:
        X: Points, n matrices with orthonormal columns, float32 or float64.
        G: Euclidean gradients.
        M: Momentum buffers, or None.
        step: Steps done before.
        update: The angle and its kind, momentum and seed.
        moments: None: no step by angle has second moments.

    Example:
        >>> import torch
        >>> X, G = torch.eye(4).repeat(1, 1, 1), torch.ones(1, 4, 4).triu()
        >>> step_pairs_by_angle_(X, G, None, torch.tensor(0), Update(lr=0.1, angle="spectral"))
        >>> angles = X[0].diagonal().acos()
        >>> bool(torch.allclose(angles, torch.full((4,), 0.1), atol=1e-4))
        True
    """
    columns = X.stride(-1) != 1 and X.stride(-2) == 1
    Xc, Gc = _in_layout(X, columns), _in_layout(G.to(X.dtype), columns)
    Mc = None if M is None else _in_layout(M, columns)
    (n, d, k), use_momentum = X.shape, M is not None
    plan = loop_numbers(update, use_momentum, X.dtype, d, 2)
    tensors = addresses(Xc, Gc, Mc), strides(Xc, Gc, Mc), (n, d, k)
    # Each row has its partner and the entry of their plane. The two rows of a pair have the same
    # entry up to its sign; the entry of an unpaired row is zero.
    partner = np.empty((n, d), np.uint32)
    entries = np.zeros((n, d))
    find, turn = (_find_by_columns, _turn_columns) if columns else (_find_by_rows, _turn_rows)
    # Independent matchings are the first rounds of as many sweeps.
    time = int(step) * (num_rounds_of_sweep(d) if update.independent else 1)
    find(X.numel(), *tensors, time, plan, partner, entries)
    theta = plan.angle * _by_angle(entries, planes_of(2, k) * (d // 2), update.angle)
    theta = np.clip(theta, -LARGEST_TURN, LARGEST_TURN)
    theta = 2 * np.arctan(theta / 2) if plan.cayley else theta
    c, s = (f(theta).astype(plan.mu.dtype) for f in (np.cos, np.sin))
    turn(X.numel(), *tensors, plan, partner, c, s)
    for A, Ac in ((X, Xc), (M, Mc)):
        if A is not None and Ac is not None and A is not Ac:
            A.copy_(Ac)
    mark_written(X, M)


def _by_angle(entries: np.ndarray, planes: int, angle: str | None) -> np.ndarray:
    """The entries of each matrix, for both rows of a pair, scaled to one radian."""
    squares = np.square(entries)
    mean = squares.sum(axis=1, keepdims=True) / (2 * planes)
    mean[mean == 0] = 1
    if angle == "rms":
        return entries / np.sqrt(mean)
    return entries * np.sqrt((1 + SOFTNESS**2) / (squares + SOFTNESS**2 * mean))


@Loops
def _find_by_rows(addresses, strides, shape, step, plan, partner, entries):
    (n, d, k), (xs, gs, ms) = shape, strides
    x, g, m = memories(addresses, plan)
    num_pairs = (d + 1) // 2
    tasks = (num_pairs + PAIRS_PER_TASK - 1) // PAIRS_PER_TASK
    for task in prange(n * tasks):
        b, start = task // tasks, task % tasks * PAIRS_PER_TASK
        pairs = np.empty((2, min(PAIRS_PER_TASK, num_pairs - start)), np.uint32)
        fill_matching(pairs, start, d, plan.seed, plan.stream + np.uint64(b), np.uint64(step))
        for q in range(pairs.shape[1]):
            i, j = pairs[0, q], pairs[1, q]
            partner[b, i], partner[b, j] = j, i
    for task in prange(n * tasks):
        b, start = task // tasks, task % tasks * 2 * PAIRS_PER_TASK
        for i in range(start, min(start + 2 * PAIRS_PER_TASK, d)):
            j = np.int64(partner[b, i])
            here = _begin(b, i, j, xs, gs, ms)
            if i == j and plan.use_momentum:
                advance(m[here[4] : here[4] + k], g[here[2] : here[2] + k], plan)
            if i < j:
                entries[b, i] = _entry(x, g, m, here, here, k, plan)
                entries[b, j] = -entries[b, i]


@Loops
def _turn_rows(addresses, strides, shape, plan, partner, c, s):
    (n, d, k), (xs, gs, ms) = shape, strides
    x, _, m = memories(addresses, plan)
    tasks = (d + 2 * PAIRS_PER_TASK - 1) // (2 * PAIRS_PER_TASK)
    for task in prange(n * tasks):
        b, start = task // tasks, task % tasks * 2 * PAIRS_PER_TASK
        for i in range(start, min(start + 2 * PAIRS_PER_TASK, d)):
            j = np.int64(partner[b, i])
            if i < j:
                xi, xj, _, _, mi, mj = _begin(b, i, j, xs, gs, ms)
                _turn(x[xi:][:k], x[xj:][:k], c[b, i], s[b, i])
                if plan.use_momentum:
                    _turn(m[mi:][:k], m[mj:][:k], c[b, i], s[b, i])


@Loops
def _find_by_columns(addresses, strides, shape, step, plan, partner, entries):
    (n, d, k), (xs, gs, ms) = shape, strides
    x, g, m = memories(addresses, plan)
    # The number of partial sums must not depend on the number of threads, nor their order.
    tasks = (k + LINES_PER_TASK - 1) // LINES_PER_TASK
    total = np.zeros((n, tasks, d), x.dtype)
    for b in prange(n):
        unused = np.empty(d, x.dtype)
        _fill_partners(
            partner[b], unused, d, plan.seed, plan.stream + np.uint64(b), np.uint64(step)
        )
    for task in prange(n * tasks):
        b, start = task // tasks, task % tasks * LINES_PER_TASK
        end = min(k, start + LINES_PER_TASK)
        _sum_lines(total[b, task % tasks], partner[b], x, g, m, xs, gs, ms, b, start, end, plan)
    for b in prange(n):
        for i in range(d):
            j = partner[b, i]
            for part in range(tasks):
                entries[b, i] += np.float64(total[b, part, i]) - np.float64(total[b, part, j])


@njit
def _begin_line(b, t, strides):
    return b * strides[0] + t * strides[2]


@Loops
def _turn_columns(addresses, strides, shape, plan, partner, c, s):
    (n, d, k), (xs, _, ms) = shape, strides
    x, _, m = memories(addresses, plan)
    tasks = (k + LINES_PER_TASK - 1) // LINES_PER_TASK
    for task in prange(n * tasks):
        b, start = task // tasks, task % tasks * LINES_PER_TASK
        other = np.empty(d, x.dtype)
        for t in range(start, min(k, start + LINES_PER_TASK)):
            prefetch(x, _begin_line(b, t + 1, xs), d)
            _turn_line(_line(x, xs, b, t, d), other, partner[b], c[b], s[b])
            if plan.use_momentum:
                _turn_line(_line(m, ms, b, t, d), other, partner[b], c[b], s[b])
