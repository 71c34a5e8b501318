r"""`step_blocks` in numba: in place, parallel, the same bits for any number of threads.

A task takes some blocks and walks twice over their columns, a tile at a time. The first walk
gathers the rows of the point and of the direction and adds up the products $D_B X_B^\top$, the
second gathers the point again and turns it. So a task needs a few tiles of memory whatever k is,
and a wide weight seen transposed is never copied: only the copy into a tile knows about strides.
Blocks that are too large for that go to torch's batched products.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg"

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from numba import njit, prange
from torch import Tensor

from ...geometry.retractions import cayley, expm
from ...tournaments.counting import edge_probability
from ...tournaments.partitions import block_sizes
from ..permutation.cpu import fill_order
from ..rotate_pairs.cpu import (
    FAST,
    PRANGE_ONLY,
    PREFETCH_UP_TO,
    Plan,
    addresses,
    advance,
    fill_direction,
    make_plan,
    mark_written,
    memories,
    prefetch,
    strides,
)
from ..update import Update, direction

LARGEST_BLOCK = 64
"""Above this torch's exponential and products are faster than the loops here."""

LINE = 16
"""Entries gathered at once where they are far apart; the width of a tile is a multiple of it."""

ROW_TILE, ROWS_PER_TASK = 256, 32
COLUMN_TILE, COLUMNS_PER_TASK = 128, 512
"""Width of a tile and rows of one task, for contiguous rows and contiguous columns.

A line of memory of the second kind is read once by each task, so their tasks are larger.
"""


def step_blocks_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""],
    update: Update,
    block_size: int,
) -> None:
    """`step_blocks` in place on CPU tensors: `X` and `M` move on, `G` stays.

    Args:
        X: Points, n matrices with orthonormal columns, float32 or float64, any strides.
        G: Euclidean gradients.
        M: Momentum buffers, or None.
        step: Steps done before.
        update: Step size, momentum and seed.
        block_size: s, between 2 and d.

    Example:
        >>> X, G = torch.eye(16).repeat(1, 1, 1), torch.ones(1, 16, 16).triu()
        >>> step_blocks_(X, G, None, torch.tensor(0), Update(lr=0.1), block_size=4)
        >>> bool(torch.allclose(X.mT @ X, torch.eye(16), atol=1e-6))
        True
    """
    n, d, k = X.shape
    G = G.to(X.dtype)
    plan = make_plan(update, M is not None, X.dtype, d, block_size)
    if block_size > LARGEST_BLOCK or 4 * block_size > d:
        _step_large_blocks_(X, G, M, step, update, block_size, plan)
        return
    l = -(-d // block_size)
    s = -(-d // l) + 3 & ~3  # rows of a tile for each block: the loops take four at a time
    tile, rows = (ROW_TILE, ROWS_PER_TASK) if X.stride(-1) == 1 else (COLUMN_TILE, COLUMNS_PER_TASK)
    cut, w = (l, max(1, min(l, rows // s)), s), min(tile, -(-k // LINE) * LINE)
    where = addresses(X, G, M), strides(X, G, M), (n, d, k), step.item(), plan, cut, w
    S = np.zeros((n * l, s, s))
    _add_grams(S, *where)
    # The bounds leave 1e-17 and 1e-11 of the series, below the rounding of R.
    bound = 0.0625 if X.dtype == torch.float64 else 0.25
    _rotations(S, plan.angle, plan.cayley, bound)
    _apply_rotations(S, *where)
    mark_written(X, M)


def _step_large_blocks_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""],
    update: Update,
    block_size: int,
    plan: Plan,
) -> None:
    """The step by torch's batched products, one batch for each size of blocks.

    In float64, as torch may be set to round the factors of a float32 product to bfloat16.
    """
    n, d, _ = X.shape
    D, new_M = direction(G, M, update)
    if M is not None and new_M is not None:
        M.copy_(new_M)
    gamma = expm if update.retraction == "exp" else cayley
    eta = -update.lr / float(edge_probability(d, block_size))
    order = torch.from_numpy(_orders(n, d, step.item(), plan))
    batch, start = torch.arange(n)[:, None, None], 0
    for size, count in block_sizes(d, block_size):
        rows = order[:, start : start + size * count].view(n, count, size)
        start += size * count
        if size == 1:
            continue
        X_B, D_B = (A[batch, rows].to(torch.float64) for A in (X, D))  # (n, l, s, k)
        S = D_B @ X_B.mT
        R = gamma(eta * (S - S.mT))  # (n, l, s, s)
        R = R + 0.5 * R @ (torch.eye(size, dtype=R.dtype) - R.mT @ R)  # undoes large angles' drift
        X[batch, rows] = (R @ X_B).to(X.dtype)


@njit(cache=True)
def _orders(n, d, step, plan):
    orders = np.empty((n, d), np.uint32)
    for b in range(n):
        fill_order(orders[b], 0, d, plan.seed, plan.stream + np.uint64(b), np.uint64(step))
    return orders.astype(np.int64)


@njit(cache=True)
def _copy(out, x):
    for t in range(x.size):
        out[t] = x[t]


@njit(cache=True)
def _pick(out, x, offsets):
    for e in range(offsets.size):
        out[e] = x[offsets[e]]


@njit(cache=True)
def _put(x, values, offsets):
    for e in range(offsets.size):
        x[offsets[e]] = values[e]


@njit(cache=True)
def _gather(tile, w, slots, offsets, x, stride, buffer):
    """Copy the entries ``x[offsets[e] + t * stride]`` to ``tile[slots[e], t]`` for t < w.

    Far apart, they are picked along the lines of memory first, then turned in a small buffer:
    reading down a column would use one entry of each cache line that is loaded.
    """
    if stride == 1:
        for e in range(slots.size):
            prefetch(x, offsets[min(e + 2, slots.size - 1)], w)
            _copy(tile[slots[e]], x[offsets[e] :][:w])
        return
    base = offsets.min()
    span = min(offsets.max() - base + 1, PREFETCH_UP_TO)
    for start in range(0, w, LINE):
        for t in range(start, min(start + LINE, w)):
            prefetch(x, base + (t + 1) * stride, span)
            _pick(buffer[t - start], x[t * stride :], offsets)
        for e in range(slots.size):
            row = tile[slots[e], start:]
            for t in range(LINE):  # all of them: a fixed number is faster, and tiles have the room
                row[t] = buffer[t, e]


@njit(cache=True)
def _scatter(tile, w, slots, offsets, x, stride, buffer):
    """Copy a tile back: the inverse of `_gather`."""
    if stride == 1:
        for e in range(slots.size):
            _copy(x[offsets[e] :], tile[slots[e], :w])
        return
    for start in range(0, w, LINE):
        for e in range(slots.size):
            row = tile[slots[e], start:]
            for t in range(LINE):
                buffer[t, e] = row[t]
        for t in range(start, min(start + LINE, w)):
            _put(x[t * stride :], buffer[t - start], offsets)


@njit(cache=True, fastmath=FAST)
def _add_gram(S, D, X):
    """S += D X^T for matrices whose numbers of rows are multiples of 4.

    Sixteen sums at once use every number that is loaded four times.
    """
    s, w = D.shape
    for i in range(0, s, 4):
        d0, d1, d2, d3 = D[i], D[i + 1], D[i + 2], D[i + 3]
        for j in range(0, s, 4):
            x0, x1, x2, x3 = X[j], X[j + 1], X[j + 2], X[j + 3]
            s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = D.dtype.type(0)
            s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = D.dtype.type(0)
            for t in range(w):
                s00 += d0[t] * x0[t]
                s01 += d0[t] * x1[t]
                s02 += d0[t] * x2[t]
                s03 += d0[t] * x3[t]
                s10 += d1[t] * x0[t]
                s11 += d1[t] * x1[t]
                s12 += d1[t] * x2[t]
                s13 += d1[t] * x3[t]
                s20 += d2[t] * x0[t]
                s21 += d2[t] * x1[t]
                s22 += d2[t] * x2[t]
                s23 += d2[t] * x3[t]
                s30 += d3[t] * x0[t]
                s31 += d3[t] * x1[t]
                s32 += d3[t] * x2[t]
                s33 += d3[t] * x3[t]
            S[i, j] += s00
            S[i, j + 1] += s01
            S[i, j + 2] += s02
            S[i, j + 3] += s03
            S[i + 1, j] += s10
            S[i + 1, j + 1] += s11
            S[i + 1, j + 2] += s12
            S[i + 1, j + 3] += s13
            S[i + 2, j] += s20
            S[i + 2, j + 1] += s21
            S[i + 2, j + 2] += s22
            S[i + 2, j + 3] += s23
            S[i + 3, j] += s30
            S[i + 3, j + 1] += s31
            S[i + 3, j + 2] += s32
            S[i + 3, j + 3] += s33


@njit(cache=True, fastmath=FAST)
def _add_four(Y, R, X):
    """Add to four rows of a product the terms of four rows of its right factor."""
    y0, y1, y2, y3 = Y[0], Y[1], Y[2], Y[3]
    x0, x1, x2, x3 = X[0], X[1], X[2], X[3]
    r00, r01, r02, r03 = R[0, 0], R[0, 1], R[0, 2], R[0, 3]
    r10, r11, r12, r13 = R[1, 0], R[1, 1], R[1, 2], R[1, 3]
    r20, r21, r22, r23 = R[2, 0], R[2, 1], R[2, 2], R[2, 3]
    r30, r31, r32, r33 = R[3, 0], R[3, 1], R[3, 2], R[3, 3]
    for t in range(y0.size):
        y0[t] += r00 * x0[t] + r01 * x1[t] + r02 * x2[t] + r03 * x3[t]
        y1[t] += r10 * x0[t] + r11 * x1[t] + r12 * x2[t] + r13 * x3[t]
        y2[t] += r20 * x0[t] + r21 * x1[t] + r22 * x2[t] + r23 * x3[t]
        y3[t] += r30 * x0[t] + r31 * x1[t] + r32 * x2[t] + r33 * x3[t]


@njit(cache=True)
def _multiply(Y, R, X):
    """Y = R X, where the sizes of R are multiples of 4."""
    Y[:] = 0
    for j in range(0, R.shape[1], 4):
        for i in range(0, R.shape[0], 4):
            _add_four(Y[i : i + 4], R[i : i + 4, j : j + 4], X[j : j + 4])


@njit(cache=True, fastmath=FAST)
def _product(A, B):
    """A B of small matrices; shorter than `_multiply`, as it is compiled into every call."""
    C = np.zeros_like(A)
    for i in range(A.shape[0]):
        row = C[i]
        for j in range(A.shape[0]):
            a, b = A[i, j], B[j]
            for t in range(row.size):
                row[t] += a * b[t]
    return C


@njit(cache=True)
def _combine(a, A, b, B, c, C, i):
    """A linear combination of three matrices and the identity, by loops: quick to compile."""
    out = np.empty_like(A)
    for row in range(A.shape[0]):
        for t in range(A.shape[0]):
            out[row, t] = a * A[row, t] + b * B[row, t] + c * C[row, t]
        out[row, row] += i
    return out


@njit(cache=True)
def _taylor_8(A):
    r"""$\sum_{n \le 8} A^n / n!$ in three products (Bader, Blanes and Casas 2019)."""
    root = math.sqrt(177.0)
    A2 = _product(A, A)
    A4 = _product(A2, _combine((1 + root) / 132, A, (1 + root) / 528, A2, 0.0, A2, 0.0))
    left = _combine(2 / 3, A2, 1.0, A4, 0.0, A4, 0.0)
    a, b, c = 11 * (root - 1) / 840, 11 * (root - 9) / 3360, (89 - root) / 2240
    right = _combine(a, A, b, A2, c, A4, (29 * root - 271) / 210)
    return _combine(1.0, A, (857 - 58 * root) / 630, A2, 1.0, _product(left, right), 1.0)


@njit(cache=True)
def _exponential(A, bound):
    """The exponential of a skew matrix, scaled to a norm below `bound` for the series."""
    norm = 0.0
    for i in range(A.shape[0]):
        for j in range(i):
            norm += A[i, j] * A[i, j]
    norm = math.sqrt(norm)  # at least the spectral norm: eigenvalues come in pairs
    if not math.isfinite(norm):
        return np.full_like(A, np.nan)
    squarings = max(0, math.ceil(math.log2(max(norm, bound) / bound)))
    scale = 0.5**squarings
    R = _taylor_8(_combine(scale, A, 0.0, A, 0.0, A, 0.0))
    for _ in range(squarings):
        R = _product(R, R)
    if squarings:  # each doubled the distance from the rotations
        error = _product(np.ascontiguousarray(R.T), R)
        R = _combine(1.5, R, -0.5, _product(R, error), 0.0, R, 0.0)
    return R


@njit(cache=True)
def _cayley(A):
    """(I - A/2)^-1 (I + A/2) = 2 (I - A/2)^-1 - I of a skew matrix.

    Gauss and Jordan without pivots: the symmetric part of I - A/2 is I, so no pivot is below 1.
    """
    s = A.shape[0]
    L, R = _combine(-0.5, A, 0.0, A, 0.0, A, 1.0), 2 * np.eye(s)
    for p in range(s):
        pivot, l, r = L[p, p], L[p], R[p]
        for t in range(s):
            l[t] /= pivot
            r[t] /= pivot
        for i in range(s):
            factor = L[i, p] if i != p else 0.0
            for t in range(s):
                L[i, t] -= factor * l[t]
                R[i, t] -= factor * r[t]
    return _combine(1.0, R, 0.0, R, 0.0, R, -1.0)


@njit(cache=True)
def _rotation(S, angle, use_cayley, bound):
    A = _combine(angle, S, -angle, S.T, 0.0, S, 0.0)
    return _cayley(A) if use_cayley else _exponential(A, bound)


@njit(parallel=PRANGE_ONLY, cache=True)
def _rotations(S, angle, use_cayley, bound):
    """The rotation of each block from S = D X^T, in place; in float64, so they are orthogonal."""
    for block in prange(S.shape[0]):
        S[block] = _rotation(S[block], angle, use_cayley, bound)


@njit(cache=True)
def _task(number, shape, step, plan, cut):
    """The blocks of one task: matrix, first block, rows and where these go in a tile.

    Every block has a multiple of 4 rows of the tile, of which the last may be empty.
    """
    (_, d, _), (l, per_task, s) = shape, cut
    tasks = -(-l // per_task)
    b, first = number // tasks, number % tasks * per_task
    small, larger = d // l, d % l
    last = min(first + per_task, l)
    start, end = first * small + min(first, larger), last * small + min(last, larger)
    order, rows = np.empty(end - start, np.uint32), np.empty(end - start, np.int64)
    fill_order(order, start, d, plan.seed, plan.stream + np.uint64(b), np.uint64(step))
    slots, e = np.empty(end - start, np.int64), 0
    for block in range(first, last):
        for i in range(small + (block < larger)):
            rows[e], slots[e] = order[e], (block - first) * s + i
            e += 1
    return b, first, last, rows, slots


@njit(cache=True)
def _offsets(b, rows, strides, t):
    return b * strides[0] + t * strides[2] + rows * strides[1]


@njit(cache=True)
def _fill_direction(D, M, w, slots, b, rows, t, g, m, gs, ms, buffer, plan):
    """The direction in the tile D; the momentum moves on."""
    _gather(D, w, slots, _offsets(b, rows, gs, t), g, gs[2], buffer)
    if plan.use_momentum:
        offsets = _offsets(b, rows, ms, t)
        _gather(M, w, slots, offsets, m, ms[2], buffer)
        for e in range(slots.size):
            u, v = D[slots[e]], M[slots[e]]
            advance(v, u, plan)
            fill_direction(u, u, v, plan)
        _scatter(M, w, slots, offsets, m, ms[2], buffer)


@njit(parallel=PRANGE_ONLY, cache=True)
def _add_grams(S, addresses, strides, shape, step, plan, cut, w):
    """S += D X^T of every block, w columns at a time; the momentum moves on."""
    (n, _, k), (l, per_task, s) = shape, cut
    xs, gs, ms = strides
    x, g, m = memories(addresses, plan)
    for number in prange(n * -(-l // per_task)):
        b, first, last, rows, slots = _task(number, shape, step, plan, cut)
        size = (last - first) * s
        X, D, M = (
            np.zeros((size, w), x.dtype),
            np.zeros((size, w), x.dtype),
            np.zeros((size, w), x.dtype),
        )
        buffer = np.zeros((LINE, slots.size + LINE), x.dtype)
        for t in range(0, k, w):
            v = min(w, k - t)
            _gather(X, v, slots, _offsets(b, rows, xs, t), x, xs[2], buffer)
            X[:, v:] = 0  # so that what D holds there does not count
            _fill_direction(D, M, v, slots, b, rows, t, g, m, gs, ms, buffer, plan)
            for block in range(first, last):
                o = (block - first) * s
                _add_gram(S[b * l + block], D[o : o + s], X[o : o + s])


@njit(parallel=PRANGE_ONLY, cache=True)
def _apply_rotations(R, addresses, strides, shape, step, plan, cut, w):
    """X_B <- R X_B of every block, w columns at a time."""
    (n, _, k), (l, per_task, s) = shape, cut
    xs, _, _ = strides
    x, _, _ = memories(addresses, plan)
    for number in prange(n * -(-l // per_task)):
        b, first, last, rows, slots = _task(number, shape, step, plan, cut)
        size = (last - first) * s
        X, Y = np.zeros((size, w), x.dtype), np.zeros((size, w), x.dtype)
        buffer = np.zeros((LINE, slots.size + LINE), x.dtype)
        for t in range(0, k, w):
            v, offsets = min(w, k - t), _offsets(b, rows, xs, t)
            _gather(X, v, slots, offsets, x, xs[2], buffer)
            for block in range(first, last):
                o = (block - first) * s
                _multiply(Y[o : o + s], R[b * l + block].astype(x.dtype), X[o : o + s])
            _scatter(Y, v, slots, offsets, x, xs[2], buffer)
