r"""`step_pairs` in numba: in place, parallel, the same bits for any number of threads.

If rows are contiguous (a tall weight), a task takes a few pairs. One loop over both rows computes
the momentum and the angle; another rotates both and their momentum while they are in the cache, so
that memory is read and written once, as by SGD. If columns are contiguous (a wide weight, which is
the transpose of a point), pairs are scattered over a line of memory, so one pass over the lines
sums all angles and a second rotates all pairs.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg, attr-defined"

import math

import numpy as np
from jaxtyping import Float, Int
from numba import njit, prange
from torch import Tensor

from .._runtime.memory_cpu import PREFETCH_UP_TO, memories, pick, prefetch
from .._runtime.numba_loops import Loops, addresses, as_array, fast, mark_written, strides
from .._runtime.update_cpu import LARGEST_TURN, advance, divisor, fill_direction, loop_numbers
from ..permutation.cpu import fill_matching
from ..permutation.reference import num_rounds_of_sweep
from ..update import Update

SEGMENT = 256
"""Entries of a row that are processed together while the same number of the next pair is
prefetched."""

PAIRS_PER_TASK = 16
LINES_PER_TASK = 128
"""Number of memory lines whose products one task of the column version sums."""


def step_pairs_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""] | int,
    update: Update,
    moments: Float[Tensor, "n d"] | None = None,
) -> None:
    """`step_pairs` in place on CPU tensors: `X` and `M` change, `G` does not.

    Fast for contiguous rows and for contiguous columns; other strides go through a copy.

    Args:
        X: Points, n matrices with orthonormal columns, float32 or float64.
        G: Euclidean gradients.
        M: Momentum buffers, or None.
        step: Steps done before.
        update: Step size, momentum and seed.
        moments: Second moments of the rows, or None.

    Example:
        >>> import torch
        >>> X, G = torch.eye(4).repeat(1, 1, 1), torch.ones(1, 4, 4).triu()
        >>> step_pairs_(X, G, None, torch.tensor(0), Update(lr=0.1))
        >>> bool(torch.allclose(X.mT @ X, torch.eye(4), atol=1e-6))
        True
    """
    columns = X.stride(-1) != 1 and X.stride(-2) == 1
    Xc, Gc = _in_layout(X, columns), _in_layout(G.to(X.dtype), columns)
    Mc = None if M is None else _in_layout(M, columns)
    plan = loop_numbers(update, M is not None, X.dtype, X.shape[1], 2)
    turn = _turn_columns if columns else _turn_rows
    w = as_array(moments)
    # Independent matchings are the first rounds of as many sweeps.
    time = int(step) * (num_rounds_of_sweep(X.shape[1]) if update.independent else 1)
    turn(X.numel(), addresses(Xc, Gc, Mc), strides(Xc, Gc, Mc), tuple(X.shape), time, plan, w)
    for A, Ac in ((X, Xc), (M, Mc)):
        if A is not None and Ac is not None and A is not Ac:
            A.copy_(Ac)
    mark_written(X, M)


def _in_layout(A: Tensor, columns: bool) -> Tensor:
    """`A` itself if its rows (or columns) are contiguous, else a copy with contiguous ones."""
    if A.stride(-2 if columns else -1) == 1:
        return A
    return A.mT.contiguous().mT if columns else A.contiguous()


@njit
def plane_angle(omega, plan):
    """The angle of a plane from its entry of D X^T - X D^T, in float64."""
    theta = min(max(plan.angle * np.float64(omega), -LARGEST_TURN), LARGEST_TURN)
    return 2.0 * math.atan(theta / 2.0) if plan.cayley else theta


@fast
def _plain_entry(xi, xj, gi, gj):
    omega = xi[0] * 0
    for t in range(xi.size):
        omega += gi[t] * xj[t] - xi[t] * gj[t]
    return omega


@fast
def _momentum_entry(xi, xj, gi, gj, mi, mj, plan):
    """The entry of a pair; the same loop updates the momentum."""
    mu, sigma, a, b = plan.mu, plan.sigma, plan.a, plan.b
    omega = xi[0] * 0
    for t in range(xi.size):
        mi[t] = mu * mi[t] + sigma * gi[t]
        mj[t] = mu * mj[t] + sigma * gj[t]
        omega += (a * gi[t] + b * mi[t]) * xj[t] - xi[t] * (a * gj[t] + b * mj[t])
    return omega


@fast
def _turn(xi, xj, c, s):
    for t in range(xi.size):
        u, v = xi[t], xj[t]
        xi[t] = c * u + s * v
        xj[t] = c * v - s * u


@njit
def _entry(x, g, m, here, ahead, k, plan):
    """The entry of one pair; meanwhile the points of the pair `ahead` are prefetched."""
    xi, xj, gi, gj, mi, mj = here
    omega = 0.0
    for t in range(0, k, SEGMENT):
        if k <= PREFETCH_UP_TO:
            prefetch(x, ahead[0] + t, SEGMENT)
            prefetch(x, ahead[1] + t, SEGMENT)
        w = min(SEGMENT, k - t)
        ui, uj, vi, vj = x[xi + t :][:w], x[xj + t :][:w], g[gi + t :][:w], g[gj + t :][:w]
        if plan.use_momentum:
            omega += _momentum_entry(ui, uj, vi, vj, m[mi + t :][:w], m[mj + t :][:w], plan)
        else:
            omega += _plain_entry(ui, uj, vi, vj)
    return omega


@njit
def _turn_pair(x, g, m, here, ahead, k, plan, by):
    """Turn one pair of rows; `here` and `ahead` say where its and the next pair's rows begin."""
    xi, xj, gi, _, mi, mj = here
    if xi == xj:
        if plan.use_momentum:
            advance(m[mi : mi + k], g[gi : gi + k], plan)
        return
    theta = plane_angle(_entry(x, g, m, here, ahead, k, plan) / by, plan)
    c, s = x.dtype.type(math.cos(theta)), x.dtype.type(math.sin(theta))
    for t in range(0, k, SEGMENT):
        if k <= PREFETCH_UP_TO:
            prefetch(g, ahead[2] + t, SEGMENT)
            prefetch(g, ahead[3] + t, SEGMENT)
            if plan.use_momentum:
                prefetch(m, ahead[4] + t, SEGMENT)
                prefetch(m, ahead[5] + t, SEGMENT)
        w = min(SEGMENT, k - t)
        _turn(x[xi + t :][:w], x[xj + t :][:w], c, s)
        if plan.use_momentum:
            _turn(m[mi + t :][:w], m[mj + t :][:w], c, s)


@njit
def _begin(b, i, j, xs, gs, ms):
    """Where the rows i and j of matrix b begin in the memory of X, G and M."""
    return (
        b * xs[0] + i * xs[1],
        b * xs[0] + j * xs[1],
        b * gs[0] + i * gs[1],
        b * gs[0] + j * gs[1],
        b * ms[0] + i * ms[1],
        b * ms[0] + j * ms[1],
    )


@Loops
def _turn_rows(addresses, strides, shape, step, plan, w):
    (n, d, k), (xs, gs, ms) = shape, strides
    x, g, m = memories(addresses, plan)
    num_pairs = (d + 1) // 2
    tasks = (num_pairs + PAIRS_PER_TASK - 1) // PAIRS_PER_TASK
    partner, first = np.empty((n, d), np.uint32), np.empty((n, num_pairs), np.uint32)
    for task in prange(n * tasks):
        b, start = task // tasks, task % tasks * PAIRS_PER_TASK
        pairs = np.empty((2, min(PAIRS_PER_TASK, num_pairs - start)), np.uint32)
        fill_matching(pairs, start, d, plan.seed, plan.stream + np.uint64(b), np.uint64(step))
        for q in range(pairs.shape[1]):
            i, j = pairs[0, q], pairs[1, q]
            partner[b, i], partner[b, j] = j, i
    # Sorted by one of their rows, so that the processor predicts half of the addresses.
    for b in prange(n):
        e = 0
        for i in range(d):
            if i <= partner[b, i]:
                first[b, e] = i
                e += 1
    for task in prange(n * tasks):
        b, start = task // tasks, task % tasks * PAIRS_PER_TASK
        end = min(start + PAIRS_PER_TASK, num_pairs)
        i = np.int64(first[b, start])
        ahead = _begin(b, i, np.int64(partner[b, i]), xs, gs, ms)
        for q in range(start, end):
            by = divisor(w, b, i, partner[b, i])
            here, i = ahead, np.int64(first[b, min(q + 1, end - 1)])
            ahead = _begin(b, i, np.int64(partner[b, i]), xs, gs, ms)
            _turn_pair(x, g, m, here, ahead, k, plan, by)


@njit
def _fill_partners(partner, sign, d, seed, stream, step):
    """Find the partner of each row; the sign is +1 for the first of a pair, 0 if it has none."""
    pairs = np.empty((2, (d + 1) // 2), np.uint32)
    fill_matching(pairs, 0, d, seed, stream, step)
    for q in range(pairs.shape[1]):
        i, j = pairs[0, q], pairs[1, q]
        partner[i], partner[j] = j, i
        sign[i], sign[j] = 1.0, -1.0
        if i == j:
            sign[i] = 0.0


@fast
def _add_products(total, partner, x, u):
    """Add to the total of each row its product with its partner, over four lines of memory."""
    x0, x1, x2, x3 = x
    u0, u1, u2, u3 = u
    for i in range(total.size):
        j = partner[i]
        total[i] += (u0[i] * x0[j] + u1[i] * x1[j]) + (u2[i] * x2[j] + u3[i] * x3[j])


@fast
def _turn_line(x, other, partner, c, s):
    """Turn all pairs of a line; `other` is memory for the partners' entries."""
    pick(other, x, partner)
    for i in range(x.size):
        x[i] = c[i] * x[i] + s[i] * other[i]


@njit
def _line(x, xs, b, t, d):
    """Line t of matrix b: the contiguous column t of its d rows."""
    return x[b * xs[0] + t * xs[2] :][:d]


@njit
def _direction_line(out, zeros, g, m, gs, ms, b, t, d, end, plan):
    """The direction along line t, whose momentum is updated; zeros from the line `end` on."""
    if t >= end:
        return zeros
    gt = _line(g, gs, b, t, d)
    if not plan.use_momentum:
        return gt
    mt = _line(m, ms, b, t, d)
    advance(mt, gt, plan)
    fill_direction(out, gt, mt, plan)
    return out


@njit
def _sum_lines(total, partner, x, g, m, xs, gs, ms, b, start, end, plan):
    """The products of each row with its partner over the lines `start` to `end`."""
    d = total.size
    zeros, out = np.zeros(d, x.dtype), np.empty((4, d), x.dtype)
    for t in range(start, end, 4):
        # Partners are read in random order, which the processor cannot predict.
        for u in range(t + 4, min(t + 8, end)):
            prefetch(x, b * xs[0] + u * xs[2], d)
        _add_products(
            total,
            partner,
            (
                _line(x, xs, b, t, d),
                _line(x, xs, b, min(t + 1, end - 1), d),
                _line(x, xs, b, min(t + 2, end - 1), d),
                _line(x, xs, b, min(t + 3, end - 1), d),
            ),
            (
                _direction_line(out[0], zeros, g, m, gs, ms, b, t, d, end, plan),
                _direction_line(out[1], zeros, g, m, gs, ms, b, t + 1, d, end, plan),
                _direction_line(out[2], zeros, g, m, gs, ms, b, t + 2, d, end, plan),
                _direction_line(out[3], zeros, g, m, gs, ms, b, t + 3, d, end, plan),
            ),
        )


@njit
def _fill_rotation(c, s, total, partner, sign, plan, w, b):
    """Cosine and signed sine of each row from the partial sums of its products, `total`."""
    for i in range(c.size):
        j = partner[i]
        omega = 0.0
        for part in range(total.shape[0]):
            omega += np.float64(total[part, i]) - np.float64(total[part, j])
        theta = plane_angle(sign[i] * omega / divisor(w, b, i, j), plan)
        c[i], s[i] = math.cos(theta), sign[i] * math.sin(theta)


@Loops
def _turn_columns(addresses, strides, shape, step, plan, w):
    (n, d, k), (xs, gs, ms) = shape, strides
    x, g, m = memories(addresses, plan)
    # The number of partial sums must not depend on the number of threads, nor their order.
    tasks = (k + LINES_PER_TASK - 1) // LINES_PER_TASK
    partner, sign = np.empty((n, d), np.uint32), np.empty((n, d), x.dtype)
    c, s = np.empty((n, d), x.dtype), np.empty((n, d), x.dtype)
    total = np.zeros((n, tasks, d), x.dtype)
    for b in prange(n):
        _fill_partners(
            partner[b], sign[b], d, plan.seed, plan.stream + np.uint64(b), np.uint64(step)
        )
    for task in prange(n * tasks):
        b, start = task // tasks, task % tasks * LINES_PER_TASK
        end = min(k, start + LINES_PER_TASK)
        total_b = total[b, task % tasks]
        _sum_lines(total_b, partner[b], x, g, m, xs, gs, ms, b, start, end, plan)
    for b in prange(n):
        _fill_rotation(c[b], s[b], total[b], partner[b], sign[b], plan, w, b)
    for task in prange(n * tasks):
        b, start = task // tasks, task % tasks * LINES_PER_TASK
        other = np.empty(d, x.dtype)
        for t in range(start, min(k, start + LINES_PER_TASK)):
            prefetch(x, b * xs[0] + (t + 1) * xs[2], d)
            _turn_line(_line(x, xs, b, t, d), other, partner[b], c[b], s[b])
            if plan.use_momentum:
                prefetch(m, b * ms[0] + (t + 1) * ms[2], d)
                _turn_line(_line(m, ms, b, t, d), other, partner[b], c[b], s[b])
