r"""The large products of `rotate_factored` on CUDA, of numbers that are pairs of float16.

A float32 number is $u(h + l)$ with two float16 numbers of 11 bits and a power of two u that its row
shares. Three products of such parts, $hh' + hl' + lh'$, leave out $2^{-22}$, as TF32 triples do, at
twice their speed; and a factor is split once, not at every use. `split` of the reference shows it.
Tensor cores cut off what they add up, so no sum stays in them for more than `DEPTH` terms.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from ..multiply_parts._triton import dot_of_parts, halves
from ..multiply_where._triton import tile_at
from ._triton import UNIT


@triton.jit
def _split_rows(
    at,
    inside,
    stride,
    length,
    at_high,
    at_low,
    stride_out,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Write the parts of rows, the largest entry of each between 2^14 and 2^15; returns the units.

    `at` (ROWS, 1) are the addresses of the rows; those that are not `inside` are zeros. The unit
    of a row with NaN or infinity is NaN.
    """
    most = tl.zeros((ROWS, WIDE), tl.int32)
    for first in range(0, length, WIDE):
        inner = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        x = tl.load(at + inner * stride, mask=inside & (inner < length), other=0.0)
        most = tl.maximum(most, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    # The exponent of the largest entry, but one for which the unit is a normal number.
    exponent = tl.maximum(tl.max(most, axis=1) >> 23, 15)
    scale = ((268 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
    for first in range(0, length, WIDE):
        inner = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        x = tl.load(at + inner * stride, mask=inside & (inner < length), other=0.0)
        high, low = halves(x * scale)
        tl.store(at_high + inner * stride_out, high, mask=inner < length)
        tl.store(at_low + inner * stride_out, low, mask=inner < length)
    unit = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    return tl.where(exponent == 255, float("nan"), unit)


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
    """The factors as they are given, into the memory of the workspace: split, filled with zeros.

    A goes into the upper half of L^T; V, if it is given, into the lower half, else B^T into
    `right`. What is known of the products is copied and checked, the step's numbers are noted.
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
        unit = _split_rows(at, inside, stride_a[1], d, high, low, 1, ROWS, WIDE)
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
        unit = _split_rows(at, inside, stride_v[1], d, high, low, 1, ROWS, WIDE)
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
        unit = _split_rows(at, inside, stride_b[1], k, high, low, 1, ROWS, WIDE)
        tl.store(right_units_ptr + matrix * half + rows, unit)


@triton.jit
def _split(
    out_ptr,
    units_ptr,
    given_ptr,
    rows,
    length,
    low,
    out_n,
    out_row,
    out_inner,
    units_n,
    given_n,
    given_row,
    given_inner,
    FOURS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Split the rows of a matrix; `low` is the way from the higher to the lower parts."""
    if FOURS:
        length, given_row, given_n = length // 4 * 4, given_row // 4 * 4, given_n // 4 * 4
    tiles = rows // ROWS
    matrix = (tl.program_id(0) // tiles).to(tl.int64)
    here = (tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    down = here[:, None]
    at = given_ptr + matrix * given_n + down * given_row
    high = out_ptr + matrix * out_n + down * out_row
    unit = _split_rows(at, down >= 0, given_inner, length, high, high + low, out_inner, ROWS, WIDE)
    tl.store(units_ptr + matrix * units_n + here, unit)


@triton.jit
def _multiply(
    out_ptr,
    left_ptr,
    left_units_ptr,
    right_ptr,
    right_units_ptr,
    a,
    b,
    c,
    share,
    splits,
    left_low,
    left_n,
    left_units_n,
    stride_left,
    right_low,
    right_n,
    stride_ri,
    stride_rj,
    stride_out,
    stride_out_n,
    SPLIT: tl.constexpr,
    FOURS: tl.constexpr,
    UPRIGHT: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The pairs (n, a, b) times X (n, b, c), or other pairs if it is `SPLIT`.

    Each share of b lies apart in `out`. Pairs have zeros behind b. `UPRIGHT`: the columns of X
    are contiguous, not its rows. `FOURS`: see `fours`.
    """
    if FOURS:
        b, c, right_n = b // 4 * 4, c // 4 * 4, right_n // 4 * 4
        stride_out, stride_out_n = stride_out // 4 * 4, stride_out_n // 4 * 4
        if UPRIGHT:
            stride_rj = stride_rj // 4 * 4
        else:
            stride_ri = stride_ri // 4 * 4
    down, across = tl.cdiv(a, HIGH), tl.cdiv(c, WIDE)
    part = tl.program_id(0) // (down * across)
    matrix, split = (part // splits).to(tl.int64), part % splits
    row, column = tile_at(tl.program_id(0) % (down * across), down, across)
    rows = (row * HIGH + tl.arange(0, HIGH)).to(tl.int64)[:, None]
    columns = (column * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
    at_left = left_ptr + matrix * left_n + rows * stride_left
    at_right = right_ptr + matrix * right_n + columns * stride_rj
    above, before = rows < a, columns < c
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(split * share, min(split * share + share, b), DEPTH):
        inner = (first + tl.arange(0, DEPTH)).to(tl.int64)
        at = at_left + inner[None, :]
        high = tl.load(at, mask=above, other=0.0)
        low = tl.load(at + left_low, mask=above, other=0.0)
        at = at_right + inner[:, None] * stride_ri
        if SPLIT:
            right = tl.load(at, mask=before, other=0.0)
            right_rest = tl.load(at + right_low, mask=before, other=0.0)
        else:
            X = tl.load(at, mask=before & (inner < b)[:, None], other=0.0)
            right, right_rest = halves(X * (1 / UNIT))
        zero = tl.zeros((HIGH, WIDE), tl.float32)
        total += dot_of_parts(high, low, right, right_rest, zero)
    total *= tl.load(left_units_ptr + matrix * left_units_n + rows, mask=above, other=0.0)
    if SPLIT:
        total *= tl.load(right_units_ptr + matrix * left_units_n + columns, mask=before, other=0.0)
    else:
        total *= UNIT
    at = out_ptr + part.to(tl.int64) * stride_out_n + rows * stride_out + columns
    tl.store(at, total, mask=above & before)


@triton.jit
def _apply(
    X_ptr,
    L_ptr,
    C_ptr,
    C_units_ptr,
    scales_ptr,
    d,
    k,
    size,
    wide_d,
    wide_k,
    x_n,
    x_row,
    x_column,
    FOURS: tl.constexpr,
    UPRIGHT: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """X + L C, unless the factors were not finite."""
    if FOURS:
        d, k, x_n = d // 4 * 4, k // 4 * 4, x_n // 4 * 4
        if UPRIGHT:
            x_column = x_column // 4 * 4
        else:
            x_row = x_row // 4 * 4
    down, across = tl.cdiv(d, HIGH), tl.cdiv(k, WIDE)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    if tl.load(scales_ptr + matrix * (size + 1) + size) < float("inf"):
        row, column = tile_at(tl.program_id(0) % (down * across), down, across)
        row, column = row.to(tl.int64) * HIGH, column.to(tl.int64) * WIDE
        inner = tl.arange(0, DEPTH)
        rows, columns = tl.arange(0, HIGH)[:, None], tl.arange(0, WIDE)[None, :]
        # Where a tile begins takes 64 bits, the way to its entries 32, which saves registers.
        L_ptr += matrix * 2 * size * wide_d + row
        C_ptr += matrix * 2 * size * wide_k + column
        at_l, at_c = (
            L_ptr + (inner[None, :] * wide_d + rows),
            C_ptr + (inner[:, None] * wide_k + columns),
        )
        above, before = row + rows < wide_d, column + columns < wide_k
        total = tl.zeros((HIGH, WIDE), tl.float32)
        for _ in range(0, size, DEPTH):
            L, C = tl.load(at_l, mask=above, other=0.0), tl.load(at_c, mask=before, other=0.0)
            L_rest = tl.load(at_l + size * wide_d, mask=above, other=0.0)
            C_rest = tl.load(at_c + size * wide_k, mask=before, other=0.0)
            total += dot_of_parts(L, L_rest, C, C_rest, tl.zeros((HIGH, WIDE), tl.float32))
            at_l += DEPTH * wide_d
            at_c += DEPTH * wide_k
        C_units_ptr += matrix * wide_k + column
        total *= tl.load(C_units_ptr + columns, mask=before, other=0.0)
        X_ptr += matrix * x_n + row * x_row + column * x_column
        # In two halves, for which the registers suffice.
        parts = tl.permute(tl.reshape(total, (HIGH, 2, WIDE // 2)), (0, 2, 1)).split()
        columns = tl.arange(0, WIDE // 2)[None, :]
        for half in tl.static_range(2):
            across_x = columns + half * (WIDE // 2)
            at = X_ptr + (rows * x_row + across_x * x_column)
            present = (row + rows < d) & (column + across_x < k)
            tl.store(at, tl.load(at, mask=present, other=0.0) + parts[half], mask=present)
