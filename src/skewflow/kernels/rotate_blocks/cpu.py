r"""`step_blocks` in numba: in place, parallel, the same bits for any number of threads.

A task takes some blocks and passes twice over their columns, a tile at a time. The first pass
copies the rows of the point and of the direction into tiles and adds up the products $D_B
X_B^\top$. The second copies the point again, and the momentum, and rotates them. So a task needs a
few tiles of memory whatever k is, and a wide weight, which is the transpose of a point, is never
copied as a whole: only the copy into a tile depends on strides. Blocks that are too large for tiles
go to torch's batched products.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg"

import numpy as np
import torch
from jaxtyping import Float, Int
from numba import njit, prange
from torch import Tensor

from ...geometry.retractions import cayley, expm
from ...tournaments.partitions import block_sizes, edge_probability
from .._runtime.memory_cpu import LINE, gather, memories, scatter
from .._runtime.numba_loops import Loops, addresses, as_array, fast, kept, mark_written, strides
from .._runtime.update_cpu import LoopNumbers, divisor, fill_direction, loop_numbers
from ..permutation.cpu import fill_order
from ..turn_by_angle.blocks_cpu import grams_by_angle_
from ..turn_by_angle.reference import Angle, blocks_by_angle
from ..update import LARGEST_ANGLE, Update, direction
from ._exponential_cpu import TINY, rotate_into

LARGEST_BLOCK = 64
"""Above this torch's exponential and products are faster than the loops here."""

ROWS_PER_TASK, ROW_TILE = 32, 256
"""Rows and width of a tile where rows are contiguous."""

LINES_PER_TASK, SUM_TILE, SUM_ROWS_PER_TASK, TURN_TILE = 256, 128, 512, 32
"""The same where columns are contiguous.

To sum products, a task takes some of the rows and reads all lines of memory. To rotate, it takes
all rows and some of the lines, because two tasks that write to one line would wait for each other.
"""


def step_blocks_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""] | int,
    update: Update,
    block_size: int,
    moments: Float[Tensor, "n d"] | None = None,
) -> None:
    """`step_blocks` in place on CPU tensors: `X` and `M` change, `G` does not.

    Args:
        X: Points, n matrices with orthonormal columns, float32 or float64, any strides.
        G: Euclidean gradients.
        M: Momentum buffers, or None.
        step: Steps done before.
        update: Step size, momentum and seed.
        block_size: s, between 2 and d.
        moments: Second moments of the rows, or None.

    Example:
        >>> X, G = torch.eye(16).repeat(1, 1, 1), torch.ones(1, 16, 16).triu()
        >>> step_blocks_(X, G, None, torch.tensor(0), Update(lr=0.1), block_size=4)
        >>> bool(torch.allclose(X.mT @ X, torch.eye(16), atol=1e-6))
        True
    """
    n, d, k = X.shape
    G = G.to(X.dtype)
    plan = loop_numbers(update, M is not None, X.dtype, d, block_size)
    if block_size > LARGEST_BLOCK or 4 * block_size > d:
        _step_large_blocks_(X, G, M, step, update, block_size, plan, moments)
        return
    l = -(-d // block_size)
    s = -(-d // l) + 3 & ~3  # rows of a tile for each block: the loops take four at a time
    turned = addresses(X, G, M), strides(X, G, M), (n, d, k), int(step), plan
    tensors = turned
    if M is not None:
        M.mul_(update.momentum).add_(G, alpha=float(plan.sigma))  # faster than in the tiles
        if not update.nesterov:  # the direction is the momentum
            plain = plan._replace(use_momentum=False)
            tensors = addresses(X, M, None), strides(X, M, None), (n, d, k), int(step), plain
    by_rows = X.stride(-1) == 1
    S = np.zeros((n * l, s, s))
    rows, tile = (ROWS_PER_TASK, ROW_TILE) if by_rows else (SUM_ROWS_PER_TASK, SUM_TILE)
    work = X.numel() * s // 2
    _add_grams(work, S, *tensors, (l, max(1, rows // s), s), min(tile, -(-k // LINE) * LINE))
    if moments is not None:
        _divide(S, _orders(n, d, int(step), plan), as_array(moments), l)
    if update.angle is not None:
        grams_by_angle_(S, d, k, l, update.angle)
    # The truncation errors are 1e-17 and 1e-11, below the rounding of R.
    bound = TINY if X.dtype == torch.float64 else 0.25
    most = LARGEST_ANGLE[torch.float32 if plan.cayley else torch.float64]  # pivots lose digits
    _rotations(S.size * 8 * s, S, plan.angle, most, plan.cayley, bound)  # of about 16 products
    rows, tile, lines = (rows, tile, k) if by_rows else (l * s, TURN_TILE, LINES_PER_TASK)
    cut = l, max(1, rows // s), s
    _apply_rotations(work, S, *turned, cut, min(tile, -(-k // LINE) * LINE), lines)
    mark_written(X, M)


def _step_large_blocks_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""] | int,
    update: Update,
    block_size: int,
    plan: LoopNumbers,
    moments: Float[Tensor, "n d"] | None,
) -> None:
    """The step by torch's batched products in float64, one batch for each size of blocks."""
    n, d, _ = X.shape
    D, new_M = direction(G, M, update)
    if M is not None and new_M is not None:
        M.copy_(new_M)
    gamma = expm if update.retraction == "exp" else cayley
    eta = update.lr
    if update.angle is None:
        eta /= float(edge_probability(d, block_size))
    order = torch.from_numpy(_orders(n, d, int(step), plan))
    batch, start = torch.arange(n)[:, None, None], 0
    found: list[tuple[Tensor, Tensor]] = []
    for size, count in block_sizes(d, block_size):
        rows = order[:, start : start + size * count].view(n, count, size)
        start += size * count
        if size == 1:
            continue
        X_B, D_B = (A[batch, rows].to(torch.float64) for A in (X, D))  # (n, l, s, k)
        S = D_B @ X_B.mT
        if moments is not None:
            w = moments.to(S)[batch[:, 0], rows.flatten(1)].view(n, count, size)
            S = S / ((w[..., None] + w[..., None, :]) / 2).sqrt()
        found.append((rows, S - S.mT))  # (n, l, s, s)
    if update.angle is not None:
        found = _by_angle(found, X.shape[-1], update.angle)
    for rows, omega in found:
        most = LARGEST_ANGLE[torch.float64] / torch.linalg.matrix_norm(omega, keepdim=True)
        R = gamma(most.clamp(max=eta) * -omega)
        R = R + 0.5 * R @ (torch.eye(R.shape[-1], dtype=R.dtype) - R.mT @ R)  # of large angles
        X[batch, rows] = (R @ X[batch, rows].to(R)).to(X.dtype)
        if M is not None:
            M[batch, rows] = (R @ M[batch, rows].to(R)).to(M.dtype)


def _by_angle(
    found: list[tuple[Tensor, Tensor]], columns: int, angle: Angle
) -> list[tuple[Tensor, Tensor]]:
    """The generators of all blocks, scaled to an angle matrix by matrix."""
    matrices = zip(*(omega for _, omega in found), strict=True)
    turned = [blocks_by_angle(blocks, columns, angle) for blocks in matrices]
    sizes = zip(*turned, strict=True)
    return [(rows, torch.stack(o)) for (rows, _), o in zip(found, sizes, strict=True)]


@kept
def _orders(n, d, step, plan):
    orders = np.empty((n, d), np.uint32)
    for b in range(n):
        fill_order(orders[b], 0, d, plan.seed, plan.stream + np.uint64(b), np.uint64(step))
    return orders.astype(np.int64)


@fast
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
                s00, s01 = s00 + d0[t] * x0[t], s01 + d0[t] * x1[t]
                s02, s03 = s02 + d0[t] * x2[t], s03 + d0[t] * x3[t]
                s10, s11 = s10 + d1[t] * x0[t], s11 + d1[t] * x1[t]
                s12, s13 = s12 + d1[t] * x2[t], s13 + d1[t] * x3[t]
                s20, s21 = s20 + d2[t] * x0[t], s21 + d2[t] * x1[t]
                s22, s23 = s22 + d2[t] * x2[t], s23 + d2[t] * x3[t]
                s30, s31 = s30 + d3[t] * x0[t], s31 + d3[t] * x1[t]
                s32, s33 = s32 + d3[t] * x2[t], s33 + d3[t] * x3[t]
            rows = (
                (s00, s01, s02, s03),
                (s10, s11, s12, s13),
                (s20, s21, s22, s23),
                (s30, s31, s32, s33),
            )
            for a in range(4):
                for c in range(4):
                    S[i + a, j + c] += rows[a][c]


@fast
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


@njit
def _multiply(Y, R, X):
    """Y = R X, where the sizes of R are multiples of 4."""
    Y[:] = 0
    for j in range(0, R.shape[1], 4):
        for i in range(0, R.shape[0], 4):
            _add_four(Y[i : i + 4], R[i : i + 4, j : j + 4], X[j : j + 4])


@kept
def _divide(S, order, w, l):
    """Divide the entries of the Gram matrices by the root mean square of their rows' moments."""
    n, d = order.shape
    small, larger = d // l, d % l
    for b in range(n):
        for block in range(l):
            start = block * small + min(block, larger)
            size = small + (block < larger)
            for i in range(size):
                for j in range(size):
                    by = divisor(w, b, order[b, start + i], order[b, start + j])
                    S[b * l + block, i, j] /= by


@Loops
def _rotations(S, angle, most, use_cayley, bound):
    """The rotation of each block from S = D X^T, in place; in float64, so they are orthogonal."""
    for block in prange(S.shape[0]):
        rotate_into(S[block], angle, most, use_cayley, bound)


@njit
def _task(number, shape, step, plan, cut):
    """The blocks of one task: matrix, first block, rows and their positions in a tile.

    Every block takes a multiple of 4 rows of the tile; the last of them may be empty.
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


@njit
def _offsets(b, rows, strides, t):
    return b * strides[0] + t * strides[2] + rows * strides[1]


@njit
def _gather_direction(D, M, w, slots, b, rows, t, g, m, gs, ms, buffer, plan):
    """The direction in the tile D: a G + b M, or G."""
    gather(D, w, slots, _offsets(b, rows, gs, t), g, gs[2], buffer)
    if plan.use_momentum:
        gather(M, w, slots, _offsets(b, rows, ms, t), m, ms[2], buffer)
        for e in range(slots.size):
            fill_direction(D[slots[e]], D[slots[e]], M[slots[e]], plan)


@Loops
def _add_grams(S, addresses, strides, shape, step, plan, cut, w):
    """S += D X^T of every block, w columns at a time."""
    (n, _, k), (l, per_task, s) = shape, cut
    xs, gs, ms = strides
    x, g, m = memories(addresses, plan)
    for number in prange(n * -(-l // per_task)):
        b, first, last, rows, slots = _task(np.int64(number), shape, step, plan, cut)
        size = (last - first) * s
        X, D = np.zeros((size, w), x.dtype), np.zeros((size, w), x.dtype)
        M = np.zeros((size, w), x.dtype)
        buffer = np.zeros((LINE, slots.size + LINE), x.dtype)
        for t in range(0, k, w):
            v = min(w, k - t)
            gather(X, v, slots, _offsets(b, rows, xs, t), x, xs[2], buffer)
            X[:, v:] = 0  # so the stale entries of D add nothing
            _gather_direction(D, M, v, slots, b, rows, t, g, m, gs, ms, buffer, plan)
            for block in range(first, last):
                o = (block - first) * s
                _add_gram(S[b * l + block], D[o : o + s], X[o : o + s])


@Loops
def _apply_rotations(R, addresses, strides, shape, step, plan, cut, w, columns_per_task):
    """X_B <- R X_B of every block, and M_B <- R M_B, w columns at a time."""
    (n, _, k), (l, per_task, s) = shape, cut
    xs, _, ms = strides
    x, _, m = memories(addresses, plan)
    parts = -(-k // columns_per_task)
    for number in prange(n * -(-l // per_task) * parts):
        b, first, last, rows, slots = _task(np.int64(number) // parts, shape, step, plan, cut)
        size, start = (last - first) * s, np.int64(number) % parts * columns_per_task
        X, Y = np.zeros((size, w), x.dtype), np.zeros((size, w), x.dtype)
        buffer = np.zeros((LINE, slots.size + LINE), x.dtype)
        R_b = R[b * l + first : b * l + last].astype(x.dtype)
        end = min(k, start + columns_per_task)
        for t in range(start, end, w):
            for momentum in range(2 if plan.use_momentum else 1):
                z, zs = (m, ms) if momentum else (x, xs)
                v, offsets = min(w, end - t), _offsets(b, rows, zs, t)
                gather(X, v, slots, offsets, z, zs[2], buffer)
                for block in range(last - first):
                    o = block * s
                    _multiply(Y[o : o + s], R_b[block], X[o : o + s])
                scatter(Y, v, slots, offsets, z, zs[2], buffer)
