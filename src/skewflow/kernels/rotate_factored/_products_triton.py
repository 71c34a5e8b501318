r"""The large products of `rotate_factored` on CUDA, of numbers that are pairs of float16.

Three products of such parts, $hh' + hl' + lh'$, leave out $2^{-22}$, as TF32 triples do, at twice
their speed; and a factor is split once, not at every use: see `_split_triton`. Tensor cores cut
off what they add up, so no sum stays in them for more than `DEPTH` terms, unless it may be coarse.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from ..multiply_parts._triton import dot_of_parts, halves
from ..multiply_where._triton import tile_at
from ._triton import UNIT


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
    right_units_n,
    stride_left,
    right_low,
    right_n,
    stride_ri,
    stride_rj,
    stride_out,
    stride_out_n,
    SPLIT: tl.constexpr,
    HAS_UNIT: tl.constexpr,
    COARSE: tl.constexpr,
    FOURS: tl.constexpr,
    UPRIGHT: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The pairs (n, a, b) times X (n, b, c), or other pairs if it is `SPLIT`.

    Each share of b lies apart in `out`. Pairs have zeros behind b. `UPRIGHT`: the columns of X
    are contiguous, not its rows. `FOURS`: see `fours`. `HAS_UNIT`: the matrices in the place of X
    have units of their own. `COARSE`: only of the higher parts, which have the bits of TF32.
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
    unit = UNIT
    if HAS_UNIT:
        unit = tl.load(right_units_ptr + matrix * right_units_n)
    scale = 1 / unit
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(split * share, min(split * share + share, b), DEPTH):
        inner = (first + tl.arange(0, DEPTH)).to(tl.int64)
        at = at_left + inner[None, :]
        high = tl.load(at, mask=above, other=0.0)
        at_low = at + left_low
        at = at_right + inner[:, None] * stride_ri
        if SPLIT:
            right = tl.load(at, mask=before, other=0.0)
            right_rest = tl.load(at + right_low, mask=before, other=0.0)
        else:
            X = tl.load(at, mask=before & (inner < b)[:, None], other=0.0)
            right, right_rest = halves(X * scale)
        if COARSE:
            total = tl.dot(high, right, total)
        else:
            low = tl.load(at_low, mask=above, other=0.0)
            zero = tl.zeros((HIGH, WIDE), tl.float32)
            total += dot_of_parts(high, low, right, right_rest, zero)
    total *= tl.load(left_units_ptr + matrix * left_units_n + rows, mask=above, other=0.0)
    if SPLIT:
        total *= tl.load(right_units_ptr + matrix * right_units_n + columns, mask=before, other=0.0)
    else:
        total *= unit
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
