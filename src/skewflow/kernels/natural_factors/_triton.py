"""The small kernels of `natural_factors` on CUDA: what is between its products.

Matrices lie transposed, with their r columns as rows, and what is multiplied as pairs of float16
in units that are the same for all entries, as none is larger than 1, or not much.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from ..multiply_parts._triton import store_parts, unit_for
from ..multiply_where._triton import tile_product

UNIT = tl.constexpr(2.0**-13)
"""Of entries of columns of length one at most, and of T, since H is I at most."""

UNIT_OF_Q = tl.constexpr(2.0**-4)
"""Of those of P - HP / |H|: where the norm of H is found too small, they may be large."""


@triton.jit
def _squares(
    sums_ptr, A_ptr, B_ptr, d, k, rank, stride_a, stride_b,
    SHARES: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The squares of the columns of A and of B, in float64; the shares of the rows lie apart."""
    part, share = tl.program_id(0) // SHARES, tl.program_id(0) % SHARES
    matrix, columns = (part // 2).to(tl.int64), tl.arange(0, WIDE)[None, :]
    total = tl.zeros((HIGH, WIDE), tl.float64)
    if part % 2 == 0:
        at = A_ptr + matrix * stride_a[0] + columns.to(tl.int64) * stride_a[2]
        for first in range(share * HIGH, d, SHARES * HIGH):
            rows = (first + tl.arange(0, HIGH)).to(tl.int64)[:, None]
            x = tl.load(at + rows * stride_a[1], mask=(rows < d) & (columns < rank), other=0.0)
            x = x.to(tl.float64)
            total += x * x
    else:
        at = B_ptr + matrix * stride_b[0] + columns.to(tl.int64) * stride_b[2]
        for first in range(share * HIGH, k, SHARES * HIGH):
            rows = (first + tl.arange(0, HIGH)).to(tl.int64)[:, None]
            x = tl.load(at + rows * stride_b[1], mask=(rows < k) & (columns < rank), other=0.0)
            x = x.to(tl.float64)
            total += x * x
    at = sums_ptr + (part.to(tl.int64) * SHARES + share) * WIDE + tl.arange(0, WIDE)
    tl.store(at, tl.sum(total, axis=0))


@triton.jit(do_not_specialize=["most", "growth", "part", "longer", "rounding"])
def _decide(
    numbers_ptr, fresh_ptr, scales_ptr, unit_ptr, state_ptr, sums_ptr, H_ptr,
    n, k, rank, most, growth, part, longer, rounding,
    SHARES: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r"""The numbers of a step: one program for each matrix.

    `numbers` get $|B|/\sqrt\lambda$, what is added to S, whether the factors are usable and
    whether the moment begins anew; `fresh` the new $\sqrt\lambda$ and $c/\sqrt\lambda$. `scales`
    bring the columns of A to length one, and B to the norm one; `unit` is that of H.
    """
    matrix = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDE)
    at = sums_ptr + matrix * 2 * SHARES * WIDE
    at += tl.arange(0, SHARES)[:, None] * WIDE + columns[None, :]
    a = tl.sqrt(tl.sum(tl.load(at), axis=0))
    b = tl.sqrt(tl.sum(tl.load(at + SHARES * WIDE), axis=0))
    norm = tl.sqrt(tl.sum(a * a * b * b, axis=0))
    damping = tl.load(state_ptr + matrix).to(tl.float64)
    scale = tl.load(state_ptr + n + matrix).to(tl.float64)
    usable = norm <= most  # which NaN is not
    anew = (norm * part > growth * damping) & usable
    damping = tl.where(anew, norm * part, damping)
    scale = tl.where(anew, damping * longer, scale)
    largest = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, k, BLOCK):
        rows = (first + tl.arange(0, BLOCK)).to(tl.int64)
        at_h = H_ptr + matrix * k * k + rows * (k + 1)
        largest = tl.maximum(largest, tl.load(at_h, mask=rows < k, other=0.0))
    diagonal = tl.where(anew, 1.0, tl.max(largest, axis=0))
    unit, _ = unit_for(diagonal)
    tl.store(unit_ptr + matrix, unit)
    long = norm / tl.where(damping > 0, damping, 1.0)  # which it is not for gradients of zeros
    tl.store(numbers_ptr + matrix * 4, long.to(tl.float32))
    tl.store(numbers_ptr + matrix * 4 + 1, (1 + rounding * diagonal * long * long).to(tl.float32))
    tl.store(numbers_ptr + matrix * 4 + 2, tl.where(usable, 1.0, 0.0))
    tl.store(numbers_ptr + matrix * 4 + 3, tl.where(anew, 1.0, 0.0))
    tl.store(fresh_ptr + matrix * 2, damping.to(tl.float32))
    tl.store(fresh_ptr + matrix * 2 + 1, scale.to(tl.float32))
    of_a = tl.where(a > 0, 1 / tl.where(a > 0, a, 1.0), 0.0)
    of_b = tl.where(norm > 0, a / tl.where(norm > 0, norm, 1.0), 0.0)
    at = scales_ptr + matrix * 2 * rank + columns
    tl.store(at, of_a.to(tl.float32), mask=columns < rank)
    tl.store(at + rank, of_b.to(tl.float32), mask=columns < rank)


@triton.jit(do_not_specialize=["even"])
def _begin(H_ptr, v_ptr, numbers_ptr, k, even, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """H becomes I, and v a vector with equal entries, where the moment begins anew."""
    down = tl.cdiv(k, HIGH)
    matrix = (tl.program_id(0) // down).to(tl.int64)
    if tl.load(numbers_ptr + matrix * 4 + 3) > 0:
        rows = (tl.program_id(0) % down * HIGH + tl.arange(0, HIGH)).to(tl.int64)
        equal = tl.zeros((HIGH,), tl.float32) + even
        tl.store(v_ptr + matrix * k + rows, equal, mask=rows < k)
        for first in range(0, k, WIDE):
            columns = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
            one = tl.where(rows[:, None] == columns, 1.0, 0.0)
            at = H_ptr + (matrix * k + rows[:, None]) * k + columns
            tl.store(at, one, mask=(rows[:, None] < k) & (columns < k))


@triton.jit
def _take(
    A_out_ptr, M_ptr, A_ptr, B_ptr, scales_ptr, d, k, rank, wide_d, wide_k, A_low, M_low,
    stride_a, stride_b,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The scaled factors as pairs: A^T, and B^T as the first rows of M^T, which has 2r + 1."""
    down, across_d, across_k = tl.cdiv(rank, HIGH), tl.cdiv(d, WIDE), tl.cdiv(k, WIDE)
    across = across_d + across_k
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile // across * HIGH + tl.arange(0, HIGH)).to(tl.int64)[:, None]
    column = tile % across
    scales_ptr += matrix * 2 * rank + rows
    if column < across_d:
        columns = (column * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        present = (rows < rank) & (columns < d)
        at = A_ptr + matrix * stride_a[0] + rows * stride_a[2] + columns * stride_a[1]
        x = tl.load(at, mask=present, other=0.0)
        x *= tl.load(scales_ptr, mask=rows < rank, other=0.0)
        at = A_out_ptr + (matrix * 2 * rank + rows) * wide_d + columns
        store_parts(at, A_low, x * (1 / UNIT), present)
    else:
        columns = ((column - across_d) * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        present = (rows < rank) & (columns < k)
        at = B_ptr + matrix * stride_b[0] + rows * stride_b[2] + columns * stride_b[1]
        x = tl.load(at, mask=present, other=0.0)
        x *= tl.load(scales_ptr + rank, mask=rows < rank, other=0.0)
        at = M_ptr + (matrix * 2 * (2 * rank + 1) + rows) * wide_k + columns
        store_parts(at, M_low, x * (1 / UNIT), present)


@triton.jit
def _fill(
    M_ptr, P_ptr, v_ptr, k, rank, wide_k, M_low,
    SHARES: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The other rows of M^T: P^T, the sum of its shares, and v^T."""
    down, across = tl.cdiv(rank + 1, HIGH), tl.cdiv(k, WIDE)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile // across * HIGH + tl.arange(0, HIGH)).to(tl.int64)[:, None]
    columns = (tile % across * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
    at = P_ptr + (matrix * SHARES * rank + rows) * k + columns
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for share in tl.static_range(SHARES):
        total += tl.load(at + share * rank * k, mask=(rows < rank) & (columns < k), other=0.0)
    v = tl.load(v_ptr + matrix * k + columns, mask=columns < k, other=0.0)
    total = tl.where(rows == rank, v, total)
    at = M_ptr + (matrix * 2 * (2 * rank + 1) + rank + rows) * wide_k + columns
    inside = (rows <= rank) & (columns < k)
    store_parts(at, M_low, total * (1 / UNIT), inside)


@triton.jit
def _iterate(HM_ptr, H_ptr, v_ptr, k, rank, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Hv, the last row of (HM)^T."""
    down = tl.cdiv(k, HIGH)
    matrix = (tl.program_id(0) // down).to(tl.int64)
    rows = (tl.program_id(0) % down * HIGH + tl.arange(0, HIGH)).to(tl.int64)
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(0, k, WIDE):
        columns = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        present = (rows[:, None] < k) & (columns < k)
        H = tl.load(H_ptr + (matrix * k + rows[:, None]) * k + columns, mask=present, other=0.0)
        total += H * tl.load(v_ptr + matrix * k + columns, mask=columns < k, other=0.0)
    at = HM_ptr + (matrix * (2 * rank + 1) + 2 * rank) * k + rows
    tl.store(at, tl.sum(total, axis=1), mask=rows < k)


@triton.jit
def _solve(R_ptr, S_ptr, numbers_ptr, rank, BLOCK: tl.constexpr):
    r"""The columns of R behind $L^{-1}$: $bL^{-1}B^\top H(P\;v)$, that is T(P v)."""
    down, across = tl.cdiv(rank, BLOCK), tl.cdiv(rank + 1, BLOCK)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile // across * BLOCK + tl.arange(0, BLOCK))[:, None]
    columns = (tile % across * BLOCK + tl.arange(0, BLOCK))[None, :]
    wide = 2 * rank + 1
    R_ptr += matrix * rank * wide
    above, before = rows < rank, columns < rank + 1
    at_s = S_ptr + matrix * rank * wide + rank + columns
    total = tile_product(
        R_ptr + rows * wide, at_s, 1, wide, above, before, 0, rank, BLOCK, BLOCK, BLOCK
    )
    total *= tl.load(numbers_ptr + matrix * 4)
    tl.store(R_ptr + rows * wide + rank + columns, total, mask=above & before)


@triton.jit
def _coefficients(K_ptr, R_ptr, numbers_ptr, rank, BLOCK: tl.constexpr):
    r"""What HB is multiplied by, 3r + 1 rows.

    They are $bL^{-1}$ for T, $b(LL^\top)^{-1}$ for the new B, and $-b(T(P\;v))^\top L^{-1}$ for
    what HP and Hv change by.
    """
    down, across = tl.cdiv(3 * rank + 1, BLOCK), tl.cdiv(rank, BLOCK)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile // across * BLOCK + tl.arange(0, BLOCK))[:, None]
    columns = (tile % across * BLOCK + tl.arange(0, BLOCK))[None, :]
    wide = 2 * rank + 1
    R_ptr += matrix * rank * wide
    upper, above, before = rows < rank, rows < 3 * rank + 1, columns < rank
    R = tl.load(R_ptr + rows * wide + columns, mask=upper & before, other=0.0)
    at_left = R_ptr + tl.where(upper, 0, rows - rank)
    total = tile_product(
        at_left, R_ptr + columns, wide, wide, above & (rows >= rank), before, 0, rank,
        BLOCK, BLOCK, BLOCK,
    )  # fmt: skip
    total = tl.where(rows < 2 * rank, total, -total)
    b = tl.load(numbers_ptr + matrix * 4)
    at = K_ptr + (matrix * (3 * rank + 1) + rows) * rank + columns
    tl.store(at, b * tl.where(upper, R, total), mask=above & before)


@triton.jit
def _outcome(
    out_ptr, T_ptr, K_ptr, HM_ptr, k, rank, wide_k, T_low,
    HIGH: tl.constexpr, WIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The rows of T, of the new B^T, HP^T and Hv^T; those of T as pairs, too."""
    high = 3 * rank + 1
    down, across = tl.cdiv(high, HIGH), tl.cdiv(k, WIDE)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile % down * HIGH + tl.arange(0, HIGH)).to(tl.int64)[:, None]
    columns = (tile // down * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
    above, before = rows < high, columns < k
    HM_ptr += matrix * (2 * rank + 1) * k
    total = tile_product(
        K_ptr + (matrix * high + rows) * rank, HM_ptr + columns, 1, k, above, before, 0, rank,
        HIGH, WIDE, DEPTH,
    )  # fmt: skip
    old = above & before & (rows >= 2 * rank)
    total += tl.load(HM_ptr + (rows - rank) * k + columns, mask=old, other=0.0)
    tl.store(out_ptr + (matrix * high + rows) * k + columns, total, mask=above & before)
    at = T_ptr + matrix * 2 * T_low + rows * wide_k + columns
    store_parts(at, T_low, total * (1 / UNIT), (rows < rank) & before)


@triton.jit(do_not_specialize=["eps"])
def _remember(
    H_ptr, v_ptr, state_ptr, numbers_ptr, fresh_ptr, live_ptr, out_ptr, n, k, rank, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The numbers and the vector of the state; the norm of H goes to the second of `numbers`."""
    matrix = tl.program_id(0).to(tl.int64)
    H_ptr += matrix * k * k
    out_ptr += (matrix * (3 * rank + 1) + 3 * rank) * k
    square, entry = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    place = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, k, BLOCK):
        rows = (first + tl.arange(0, BLOCK)).to(tl.int64)
        Hv = tl.load(out_ptr + rows, mask=rows < k, other=0.0)
        square += Hv * Hv
        one = tl.load(H_ptr + rows * (k + 1), mask=rows < k, other=0.0)
        place = tl.where(one > entry, rows.to(tl.int32), place)
        entry = tl.maximum(one, entry)
    length = tl.sqrt(tl.sum(square, axis=0))
    most = tl.max(entry, axis=0)
    axis = tl.min(tl.where(entry == most, place, k), axis=0)
    largest = tl.maximum(length, most)
    tl.store(numbers_ptr + matrix * 4 + 1, largest)
    if tl.load(live_ptr + matrix) != 0:
        tl.store(state_ptr + matrix, tl.load(fresh_ptr + matrix * 2))
        tl.store(state_ptr + n + matrix, tl.load(fresh_ptr + matrix * 2 + 1))
        for first in range(0, k, BLOCK):
            rows = (first + tl.arange(0, BLOCK)).to(tl.int64)
            Hv = tl.load(out_ptr + rows, mask=rows < k, other=0.0)
            v = tl.where(most > 1.1 * length, tl.where(rows == axis, 1.0, 0.0), Hv / length)
            tl.store(v_ptr + matrix * k + rows, v, mask=rows < k)
            one = tl.load(H_ptr + rows * (k + 1), mask=rows < k, other=0.0)
            tl.store(H_ptr + rows * (k + 1), one + eps * largest, mask=rows < k)


@triton.jit
def _within(
    Q_ptr, M_ptr, out_ptr, numbers_ptr, k, rank, wide_k, M_low, Q_low,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """P^T - HP^T / |H|, as pairs: what of the span of X is taken off A."""
    down, across = tl.cdiv(rank, HIGH), tl.cdiv(k, WIDE)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile // across * HIGH + tl.arange(0, HIGH)).to(tl.int64)[:, None]
    columns = (tile % across * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
    present = (rows < rank) & (columns < k)
    at = M_ptr + (matrix * 2 * (2 * rank + 1) + rank + rows) * wide_k + columns
    P = tl.load(at, mask=present, other=0.0).to(tl.float32)
    P += tl.load(at + M_low, mask=present, other=0.0).to(tl.float32)
    at = out_ptr + (matrix * (3 * rank + 1) + 2 * rank + rows) * k + columns
    HP = tl.load(at, mask=present, other=0.0) / tl.load(numbers_ptr + matrix * 4 + 1)
    at = Q_ptr + (matrix * 2 * rank + rows) * wide_k + columns
    store_parts(at, Q_low, (P * UNIT - HP) * (1 / UNIT_OF_Q), present)


@triton.jit
def _give(
    out_ptr, A_ptr, XQ_ptr, fresh_ptr, live_ptr, d, rank, wide_d, A_low,
    SHARES: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The new A^T, with XQ in shares; NaN where no step is to be taken."""
    down, across = tl.cdiv(rank, HIGH), tl.cdiv(d, WIDE)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile // across * HIGH + tl.arange(0, HIGH)).to(tl.int64)[:, None]
    columns = (tile % across * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
    present = (rows < rank) & (columns < d)
    at = A_ptr + (matrix * 2 * rank + rows) * wide_d + columns
    A = tl.load(at, mask=present, other=0.0).to(tl.float32)
    A += tl.load(at + A_low, mask=present, other=0.0).to(tl.float32)
    at = XQ_ptr + (matrix * SHARES * rank + rows) * d + columns
    XQ = tl.zeros((HIGH, WIDE), tl.float32)
    for share in tl.static_range(SHARES):
        XQ += tl.load(at + share * rank * d, mask=present, other=0.0)
    scale = tl.load(fresh_ptr + matrix * 2 + 1)
    scale = tl.where(tl.load(live_ptr + matrix) != 0, scale, float("nan"))
    at = out_ptr + (matrix * rank + rows) * d + columns
    tl.store(at, scale * (A * UNIT - XQ), mask=present)
