"""The CUDA kernels of `natural_factors` after its first product with H.

Matrices are stored as in `_take_triton`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from ..multiply_parts._triton import store_parts
from ..multiply_where._triton import tile_product
from ._take_triton import UNIT, tile_of

UNIT_OF_Q = tl.constexpr(2.0**-4)
"""Unit of the entries of P - HP / |H|: they may be large if the norm of H is underestimated."""

MOST = tl.constexpr(60000.0)
"""Largest number of these units, so that float16 can hold them."""


@triton.jit
def _iterate(HM_ptr, H_ptr, v_ptr, k, size, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Compute Hv, the last row of (HM)^T."""
    down = tl.cdiv(k, HIGH)
    matrix = (tl.program_id(0) // down).to(tl.int64)
    rows = (tl.program_id(0) % down * HIGH + tl.arange(0, HIGH)).to(tl.int64)
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(0, k, WIDE):
        columns = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        present = (rows[:, None] < k) & (columns < k)
        H = tl.load(H_ptr + (matrix * k + rows[:, None]) * k + columns, mask=present, other=0.0)
        total += H * tl.load(v_ptr + matrix * k + columns, mask=columns < k, other=0.0)
    at = HM_ptr + (matrix * (2 * size + 1) + 2 * size) * k + rows
    tl.store(at, tl.sum(total, axis=1), mask=rows < k)


@triton.jit
def _solve(R_ptr, S_ptr, numbers_ptr, size, BLOCK: tl.constexpr):
    r"""The columns of R behind $L^{-1}$: $bL^{-1}B^\top H(P\;v)$, that is T(P v)."""
    down, across = tl.cdiv(size, BLOCK), tl.cdiv(size + 1, BLOCK)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile // across * BLOCK + tl.arange(0, BLOCK))[:, None]
    columns = (tile % across * BLOCK + tl.arange(0, BLOCK))[None, :]
    wide = 2 * size + 1
    R_ptr += matrix * size * wide
    above, before = rows < size, columns < size + 1
    at_s = S_ptr + matrix * size * wide + size + columns
    total = tile_product(
        R_ptr + rows * wide, at_s, 1, wide, above, before, 0, size, BLOCK, BLOCK, BLOCK
    )
    total *= tl.load(numbers_ptr + matrix * 4)
    tl.store(R_ptr + rows * wide + size + columns, total, mask=above & before)


@triton.jit
def _coefficients(K_ptr, R_ptr, numbers_ptr, size, BLOCK: tl.constexpr):
    r"""The coefficients of HB, in 3r + 1 rows.

    They are $bL^{-1}$ for T, $b(LL^\top)^{-1}$ for the new B, and $-b(T(P\;v))^\top L^{-1}$ for
    what HP and Hv change by.
    """
    down, across = tl.cdiv(3 * size + 1, BLOCK), tl.cdiv(size, BLOCK)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile // across * BLOCK + tl.arange(0, BLOCK))[:, None]
    columns = (tile % across * BLOCK + tl.arange(0, BLOCK))[None, :]
    wide = 2 * size + 1
    R_ptr += matrix * size * wide
    upper, above, before = rows < size, rows < 3 * size + 1, columns < size
    R = tl.load(R_ptr + rows * wide + columns, mask=upper & before, other=0.0)
    at_left = R_ptr + tl.where(upper, 0, rows - size)
    total = tile_product(
        at_left, R_ptr + columns, wide, wide, above & (rows >= size), before, 0, size,
        BLOCK, BLOCK, BLOCK,
    )  # fmt: skip
    total = tl.where(rows < 2 * size, total, -total)
    b = tl.load(numbers_ptr + matrix * 4)
    at = K_ptr + (matrix * (3 * size + 1) + rows) * size + columns
    tl.store(at, b * tl.where(upper, R, total), mask=above & before)


@triton.jit
def _combine(
    out_ptr, T_ptr, K_ptr, HM_ptr, k, size, wide_k, T_low,
    HIGH: tl.constexpr, WIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute the rows of T, of the new B^T, HP^T and Hv^T; those of T as pairs, too."""
    high = 3 * size + 1
    down, across = tl.cdiv(high, HIGH), tl.cdiv(k, WIDE)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile % down * HIGH + tl.arange(0, HIGH)).to(tl.int64)[:, None]
    columns = (tile // down * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
    above, before = rows < high, columns < k
    HM_ptr += matrix * (2 * size + 1) * k
    total = tile_product(
        K_ptr + (matrix * high + rows) * size, HM_ptr + columns, 1, k, above, before, 0, size,
        HIGH, WIDE, DEPTH,
    )  # fmt: skip
    old = above & before & (rows >= 2 * size)
    total += tl.load(HM_ptr + (rows - size) * k + columns, mask=old, other=0.0)
    tl.store(out_ptr + (matrix * high + rows) * k + columns, total, mask=above & before)
    at = T_ptr + matrix * 2 * T_low + rows * wide_k + columns
    store_parts(at, T_low, total * (1 / UNIT), (rows < size) & before)


@triton.jit(do_not_specialize=["eps"])
def _update_state(
    H_ptr, v_ptr, state_ptr, numbers_ptr, fresh_ptr, live_ptr, out_ptr, n, k, size, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Update the numbers and the vector of the state; the norm of H goes to `numbers[1]`."""
    matrix = tl.program_id(0).to(tl.int64)
    H_ptr += matrix * k * k
    out_ptr += (matrix * (3 * size + 1) + 3 * size) * k
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
        tl.store(state_ptr + matrix, tl.load(fresh_ptr + matrix * 3))
        tl.store(state_ptr + n + matrix, tl.load(fresh_ptr + matrix * 3 + 1))
        for first in range(0, k, BLOCK):
            rows = (first + tl.arange(0, BLOCK)).to(tl.int64)
            Hv = tl.load(out_ptr + rows, mask=rows < k, other=0.0)
            v = tl.where(most > 1.1 * length, tl.where(rows == axis, 1.0, 0.0), Hv / length)
            tl.store(v_ptr + matrix * k + rows, v, mask=rows < k)
            one = tl.load(H_ptr + rows * (k + 1), mask=rows < k, other=0.0)
            tl.store(H_ptr + rows * (k + 1), one + eps * largest, mask=rows < k)


@triton.jit
def _sum_of_pairs(at, low, present):
    """Numbers in their units; `low` is the offset from the higher to the lower parts."""
    high = tl.load(at, mask=present, other=0.0).to(tl.float32)
    return high + tl.load(at + low, mask=present, other=0.0).to(tl.float32)


@triton.jit
def _span_part(
    Q_ptr, M_ptr, out_ptr, numbers_ptr, k, size, wide_k, M_low, Q_low,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute P^T - HP^T / |H| as pairs: the part in the span of X that is subtracted from A."""
    matrix, rows, columns = tile_of(size, k, HIGH, WIDE)
    present = (rows < size) & (columns < k)
    at = M_ptr + (matrix * 2 * (2 * size + 1) + size + rows) * wide_k + columns
    P = _sum_of_pairs(at, M_low, present)
    at = out_ptr + (matrix * (3 * size + 1) + 2 * size + rows) * k + columns
    HP = tl.load(at, mask=present, other=0.0) / tl.load(numbers_ptr + matrix * 4 + 1)
    Q = (P * UNIT - HP) * (1 / UNIT_OF_Q)
    Q = tl.where(tl.abs(Q) > MOST, tl.where(Q > 0, MOST, -MOST), Q)
    at = Q_ptr + (matrix * 2 * size + rows) * wide_k + columns
    store_parts(at, Q_low, Q, present)


@triton.jit
def _write_factor(
    out_ptr, A_ptr, XQ_ptr, fresh_ptr, live_ptr, d, size, wide_d, A_low,
    PARTIALS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write the new A^T, given partial sums of XQ; NaN where no step is taken."""
    matrix, rows, columns = tile_of(size, d, HIGH, WIDE)
    present = (rows < size) & (columns < d)
    at = A_ptr + (matrix * 2 * size + rows) * wide_d + columns
    A = _sum_of_pairs(at, A_low, present)
    at = XQ_ptr + (matrix * PARTIALS * size + rows) * d + columns
    XQ = tl.zeros((HIGH, WIDE), tl.float32)
    for part in tl.static_range(PARTIALS):
        XQ += tl.load(at + part * size * d, mask=present, other=0.0)
    scale = tl.load(fresh_ptr + matrix * 3 + 1)
    scale = tl.where(tl.load(live_ptr + matrix) != 0, scale, float("nan"))
    at = out_ptr + (matrix * size + rows) * d + columns
    tl.store(at, scale * (A * UNIT - XQ), mask=present)
