r"""The factors of `rotate_factored` on CUDA as pairs of float16, which its large products take.

A float32 number is $u(h + l)$ with two float16 numbers of 11 bits and a power of two u, the unit of
its row. `split` of the reference defines it.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from ..multiply_parts._rows_triton import largest, magnitude, scale_and_unit, split_rows
from ..multiply_parts._triton import halves


@triton.jit
def _scaled(at, low, scale, present, PAIRS: tl.constexpr):
    """Numbers times a scale, or the sums of pairs."""
    x = tl.load(at, mask=present, other=0.0).to(tl.float32)
    if PAIRS:
        x += tl.load(at + low, mask=present, other=0.0).to(tl.float32)
    else:
        x *= scale
    return x


@triton.jit
def _split_rest(
    at,
    at_a,
    inside,
    stride,
    stride_a,
    low_a,
    scale_a,
    length,
    at_high,
    at_low,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """`split_rows` of the rows of V^T after `rest_of`, given those of A^T.

    Rows of A^T are multiplied by `scale_a`, or are pairs already, so no square leaves the range.
    """
    scale, unit = scale_and_unit(largest(at, inside, stride, length, ROWS, WIDE))
    common = tl.zeros((ROWS, WIDE), tl.float32)
    square = tl.zeros((ROWS, WIDE), tl.float32)
    for first in range(0, length, WIDE):
        inner = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        present = inside & (inner < length)
        v = tl.load(at + inner * stride, mask=present, other=0.0)
        a = _scaled(at_a + inner * stride_a, low_a, scale_a, present, PAIRS)
        common += a * (v * scale)
        square += a * a
    whole = tl.sum(square, axis=1)
    parallel = tl.where(whole > 0, tl.sum(common, axis=1) / tl.where(whole > 0, whole, 1.0), 0.0)
    parallel = (parallel * unit)[:, None]
    most = tl.zeros((ROWS, WIDE), tl.int32)
    for first in range(0, length, WIDE):
        inner = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        present = inside & (inner < length)
        v = tl.load(at + inner * stride, mask=present, other=0.0)
        a = _scaled(at_a + inner * stride_a, low_a, scale_a, present, PAIRS)
        most = tl.maximum(most, magnitude(v - parallel * a))
    scale, unit = scale_and_unit(most)
    for first in range(0, length, WIDE):
        inner = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        present = inside & (inner < length)
        v = tl.load(at + inner * stride, mask=present, other=0.0)
        a = _scaled(at_a + inner * stride_a, low_a, scale_a, present, PAIRS)
        high, low = halves((v - parallel * a) * scale)
        tl.store(at_high + inner, high, mask=inner < length)
        tl.store(at_low + inner, low, mask=inner < length)
    return unit


@triton.jit(do_not_specialize=["row", "rank", "lr", "tolerance"])
def _take(
    L_ptr,
    units_ptr,
    right_ptr,
    right_units_ptr,
    T_ptr,
    checks_ptr,
    numbers_ptr,
    A_ptr,
    B_ptr,
    V_ptr,
    AX_ptr,
    X_ptr,
    lr,
    tolerance,
    row,
    rank,
    d,
    k,
    half,
    wide_d,
    wide_k,
    stride_a,
    stride_b,
    stride_v,
    stride_ax,
    stride_x,
    HAS_V: tl.constexpr,
    HAS_AX: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Write the given factors into the workspace, split into parts and padded with zeros.

    A goes into the upper half of L^T. If V is given, its remainder after `rest_of` goes into the
    lower half, else B^T goes into `right`. Given products are copied and checked, and the numbers
    of the step are stored.
    """
    tiles = half // ROWS
    matrix = (tl.program_id(0) // (2 * tiles)).to(tl.int64)
    part = tl.program_id(0) % (2 * tiles)
    rows = (part % tiles * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    down, inside = rows[:, None], rows[:, None] < rank
    L_ptr += matrix * 4 * half * wide_d
    units_ptr += matrix * 2 * half
    if tl.program_id(0) == 0:
        tl.store(numbers_ptr, lr)
        tl.store(numbers_ptr + 1, tolerance)
    if part < tiles:
        at = A_ptr + matrix * stride_a[0] + down * stride_a[2]
        high = L_ptr + down * wide_d
        low = high + 2 * half * wide_d
        unit = split_rows(at, inside, stride_a[1], d, high, low, 1, ROWS, WIDE)
        tl.store(units_ptr + rows, unit)
        if HAS_AX:
            at = AX_ptr + matrix * stride_ax[0] + down * stride_ax[1]
            to = T_ptr + (matrix * half + down) * k
            for first in range(0, k, WIDE):
                columns = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
                present = columns < k
                AX = tl.load(at + columns * stride_ax[2], mask=present & inside, other=0.0)
                tl.store(to + columns, AX, mask=present)
    elif HAS_V:
        at = V_ptr + matrix * stride_v[0] + down * stride_v[2]
        high = L_ptr + (half + down) * wide_d
        low = high + 2 * half * wide_d
        at_a = A_ptr + matrix * stride_a[0] + down * stride_a[2]
        scale, _ = scale_and_unit(largest(at_a, inside, stride_a[1], d, ROWS, WIDE))
        unit = _split_rest(
            at, at_a, inside, stride_v[1], stride_a[1], 0, scale, d, high, low, False, ROWS, WIDE
        )
        tl.store(units_ptr + half + rows, unit)
        at_b = B_ptr + matrix * stride_b[0] + down * stride_b[2]
        at_x = X_ptr + matrix * stride_x[0] + row.to(tl.int64) * stride_x[1]
        total = tl.zeros((ROWS, WIDE), tl.float32)
        length = tl.zeros((ROWS, WIDE), tl.float32)
        for first in range(0, k, WIDE):
            columns = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
            present = columns < k
            B = tl.load(at_b + columns * stride_b[1], mask=present & inside, other=0.0)
            total += B * tl.load(at_x + columns * stride_x[2], mask=present, other=0.0)
            length += B * B
        at_v = V_ptr + matrix * stride_v[0] + row.to(tl.int64) * stride_v[1] + rows * stride_v[2]
        error = tl.load(at_v, mask=rows < rank, other=0.0) - tl.sum(total, axis=1)
        tl.store(checks_ptr + 2 * (matrix * half + rows), error * error)
        tl.store(checks_ptr + 2 * (matrix * half + rows) + 1, tl.sum(length, axis=1))
    else:
        at = B_ptr + matrix * stride_b[0] + down * stride_b[2]
        high = right_ptr + (matrix * 2 * half + down) * wide_k
        low = high + half * wide_k
        unit = split_rows(at, inside, stride_b[1], k, high, low, 1, ROWS, WIDE)
        tl.store(right_units_ptr + matrix * half + rows, unit)


@triton.jit
def _split_lower(L_ptr, units_ptr, V_ptr, half, d, wide_d, FOURS: tl.constexpr, WIDE: tl.constexpr):
    """Split V^T after `rest_of` into the lower half of L^T; A^T is in the upper half."""
    if FOURS:
        d = d // 4 * 4
    matrix, row = (tl.program_id(0) // half).to(tl.int64), (tl.program_id(0) % half).to(tl.int64)
    rows = row + tl.arange(0, 1)
    L_ptr += matrix * 4 * half * wide_d
    at, upper = V_ptr + (matrix * half + rows[:, None]) * d, L_ptr + rows[:, None] * wide_d
    high, low = upper + half * wide_d, 2 * half * wide_d
    every = rows[:, None] >= 0
    unit = _split_rest(at, upper, every, 1, 1, low, 1.0, d, high, high + low, True, 1, WIDE)
    tl.store(units_ptr + matrix * 2 * half + half + rows, unit)
