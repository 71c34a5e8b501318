r"""`rotate_factored` on CUDA: a fixed list of launches, whose lengths the device decides.

The factors are stored as rows of $L^\top$ by `_take_triton`. They are balanced late: the products
take them unscaled, and `_balance` scales the small results so that M has trace 1. Products of small
matrices are of TF32 triples, as exact as float32. Large ones are of float16 parts: see
`multiply_parts/_rows_triton.py`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from ..multiply_parts._rows_triton import UNIT
from ..multiply_parts._triton import dot_of_parts, halves
from ..multiply_where._triton import tile_at, tile_product

UNIT_OF_P = tl.constexpr(2.0**-11)
"""Unit of the entries of the series, which are at most (e^4 - 1) / 4."""


@triton.jit
def _balances(M_ptr, rows, size):
    """The factors, up to the trace, that make the rows of L^T equally long in pairs."""
    half = size // 2
    others = tl.where(rows < half, rows + half, rows - half)
    own = tl.sqrt(tl.load(M_ptr + rows * (size + 1), mask=rows < size, other=0.0))
    other = tl.sqrt(tl.load(M_ptr + others * (size + 1), mask=rows < size, other=0.0))
    both = (own > 0) & (other > 0)  # the ratio of their squares may overflow
    return tl.where(both, tl.sqrt(other / tl.where(both, own, 1.0)), 0.0)


@triton.jit
def _trace(M_ptr, size, HALF: tl.constexpr):
    """The trace of the balanced M; NaN or infinite if a factor is."""
    half, rows = size // 2, tl.arange(0, HALF)
    u = tl.load(M_ptr + rows * (size + 1), mask=rows < half, other=0.0)
    v = tl.load(M_ptr + (rows + half) * (size + 1), mask=rows < half, other=0.0)
    return 2 * tl.sum(tl.sqrt(u) * tl.sqrt(v))


@triton.jit
def _is_stale(checks_ptr, size, tolerance, HALF: tl.constexpr):
    """Whether V differs from X B because it belongs to another X."""
    rows = tl.arange(0, HALF)
    error = tl.load(checks_ptr + 2 * rows, mask=rows < size // 2, other=0.0)
    length = tl.load(checks_ptr + 2 * rows + 1, mask=rows < size // 2, other=0.0)
    return tl.sum(error) > tolerance * tolerance * tl.sum(length)


@triton.jit
def _balance(
    flags_ptr,
    usable_ptr,
    checks_ptr,
    numbers_ptr,
    scales_ptr,
    MW_ptr,
    JT_ptr,
    M_ptr,
    T_ptr,
    AX_ptr,
    size,
    k,
    wide_k,
    rows_of_t,
    HAS_V: tl.constexpr,
    HAS_AX: tl.constexpr,
    FOURS: tl.constexpr,
    PARTIALS: tl.constexpr,
    HALF: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Scale M and T = L^T X, and write [M JM], J T and the scales.

    The last of the scales is the trace. It is NaN where V is stale; this stops the later launches
    and is reported. T is the sum of its parts. Row i of the product with J comes from the row i +
    r, or i - r.
    """
    if FOURS:
        k = k // 4 * 4
    half = size // 2
    down, wide = tl.cdiv(size, HIGH), tl.cdiv(size, WIDE)
    across = wide + tl.cdiv(k, WIDE)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows, column = tile // across * HIGH + tl.arange(0, HIGH), tile % across
    M_ptr += matrix * size * size
    trace = _trace(M_ptr, size, HALF)
    if HAS_V:
        tolerance = tl.load(numbers_ptr + 1)
        is_stale = _is_stale(checks_ptr + matrix * size, size, tolerance, HALF)
        trace = tl.where(is_stale, float("nan"), trace)
    some = trace > 0
    root = tl.where(some, 1 / tl.sqrt(tl.where(some, trace, 1.0)), 0.0)
    scales = _balances(M_ptr, rows, size) * root
    top = rows < half
    turned = tl.where(top, rows + half, rows - half).to(tl.int64)[:, None]
    sign = tl.where(top, -1.0, 1.0)[:, None]
    at = rows.to(tl.int64)[:, None]
    if column == 0:
        tl.store(scales_ptr + matrix * (size + 1) + rows, scales, mask=rows < size)
        tl.store(scales_ptr + matrix * (size + 1) + size, trace)
        usable = trace < float("inf")
        tl.store(usable_ptr + matrix, usable)
        tl.store(flags_ptr, 1, mask=usable == 0)
    if column < wide:
        columns = column * WIDE + tl.arange(0, WIDE)
        present = (rows < size)[:, None] & (columns < size)[None, :]
        M = tl.load(M_ptr + at * size + columns[None, :], mask=present, other=0.0)
        M *= scales[:, None] * (_balances(M_ptr, columns, size) * root)[None, :]
        out = MW_ptr + matrix * 2 * size * size + columns[None, :]
        tl.store(out + at * 2 * size, M, mask=present)
        tl.store(out + turned * 2 * size + size, sign * M, mask=present)
    else:
        columns = (column - wide) * WIDE + tl.arange(0, WIDE)
        present = (rows < size)[:, None] & (columns < k)[None, :]
        skipped = size - rows_of_t  # whose sums lie in AX
        at_t = T_ptr + matrix * PARTIALS * rows_of_t * k + (at - skipped) * k + columns[None, :]
        T = tl.zeros((HIGH, WIDE), tl.float32)
        for part in tl.static_range(PARTIALS):
            T += tl.load(at_t + part * rows_of_t * k, mask=present & (at >= skipped), other=0.0)
        if HAS_AX:
            at_ax = AX_ptr + (matrix * half + at) * k + columns[None, :]
            T += tl.load(at_ax, mask=present & (at < half), other=0.0)
        high, low = halves(sign * scales[:, None] * T * (1 / UNIT))
        at_jt = JT_ptr + (matrix * 2 * size + turned) * wide_k + columns[None, :]
        tl.store(at_jt, high, mask=present)
        tl.store(at_jt + size * wide_k, low, mask=present)


@triton.jit
def _square(norms_ptr, W2_ptr, MW_ptr, size, BLOCK: tl.constexpr):
    """(JM)^2, and for each tile of M^2 the sum of its squares."""
    across = size // BLOCK
    tiles = across * across
    matrix = (tl.program_id(0) // (2 * tiles)).to(tl.int64)
    tile = tl.program_id(0) % (2 * tiles)
    row, column = tile // (2 * across), tile % (2 * across)
    rows = row * BLOCK + tl.arange(0, BLOCK)
    columns = (column * BLOCK + tl.arange(0, BLOCK))[None, :]
    MW_ptr += matrix * 2 * size * size
    at_a, at_b = MW_ptr + rows[:, None] * 2 * size, MW_ptr + columns
    every = rows[:, None] >= 0
    total = tile_product(at_a, at_b, 1, 2 * size, every, columns >= 0, 0, size, BLOCK, BLOCK, BLOCK)
    if column < across:
        tl.store(norms_ptr + matrix * tiles + row * across + column, tl.sum(total * total))
    else:  # M J M: J permutes its rows
        top = rows < size // 2
        turned = tl.where(top, rows + size // 2, rows - size // 2)[:, None]
        at = W2_ptr + matrix * size * size + turned * size + (columns - size)
        tl.store(at, tl.where(top, -1.0, 1.0)[:, None] * total)


@triton.jit
def _length(norms_ptr, scales_ptr, numbers_ptr, matrix, longest, tiles, size, TILES: tl.constexpr):
    """The step along the scaled generator, cut, and the norm of the turn; NaN if one is."""
    places = tl.arange(0, TILES)
    squares = tl.load(norms_ptr + matrix * tiles + places, mask=places < tiles, other=0.0)
    norm = tl.sqrt(tl.sqrt(tl.sum(squares)))
    lr = tl.load(numbers_ptr)
    whole = tl.abs(lr) * tl.load(scales_ptr + matrix * (size + 1) + size)
    cut = tl.where(whole * norm > longest, longest / tl.where(norm > 0, norm, 1.0), whole)
    return tl.where(lr < 0, -cut, cut), cut * norm


@triton.jit(do_not_specialize=["above", "enough", "longest", "a", "b"])
def _term(
    out_ptr,
    P_ptr,
    W2_ptr,
    MW_ptr,
    norms_ptr,
    scales_ptr,
    numbers_ptr,
    longest,
    above,
    enough,
    a,
    b,
    tiles,
    size,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One round of the series: Z^2 P + a I + b Z; nothing for steps that do not need it."""
    across = size // BLOCK
    matrix = (tl.program_id(0) // (across * across)).to(tl.int64)
    eta, length = _length(norms_ptr, scales_ptr, numbers_ptr, matrix, longest, tiles, size, TILES)
    if length > above:
        tile = tl.program_id(0) % (across * across)
        rows = (tile // across * BLOCK + tl.arange(0, BLOCK))[:, None]
        columns = (tile % across * BLOCK + tl.arange(0, BLOCK))[None, :]
        plane = matrix * size * size
        P = b * eta * tl.load(MW_ptr + 2 * plane + rows * 2 * size + size + columns)
        P += tl.where(rows == columns, a, 0.0)
        if length > enough:
            at_a, at_b = W2_ptr + plane + rows * size, P_ptr + plane + columns
            total = tile_product(
                at_a, at_b, 1, size, rows >= 0, columns >= 0, 0, size, BLOCK, BLOCK, BLOCK
            )
            P += eta * eta * total
        tl.store(out_ptr + plane + rows * size + columns, P)


@triton.jit(do_not_specialize=["longest"])
def _combine(
    C_ptr,
    P_ptr,
    JT_ptr,
    norms_ptr,
    scales_ptr,
    units_ptr,
    numbers_ptr,
    longest,
    tiles,
    size,
    k,
    wide_k,
    FOURS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The matrix by which the rows of L^T, in their units, are multiplied: the scaled eta P J T."""
    if FOURS:
        k = k // 4 * 4
    down, across = tl.cdiv(size, BLOCK), tl.cdiv(k, BLOCK)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    eta, length = _length(norms_ptr, scales_ptr, numbers_ptr, matrix, longest, tiles, size, TILES)
    if length >= 0:
        row, column = tile_at(tl.program_id(0) % (down * across), down, across)
        rows = (row * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[:, None]
        columns = (column * BLOCK + tl.arange(0, BLOCK))[None, :]
        at_p = P_ptr + (matrix * size + rows) * size
        at_jt = JT_ptr + matrix * 2 * size * wide_k + columns
        before = columns < wide_k
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for first in range(0, size, DEPTH):
            inner = first + tl.arange(0, DEPTH)
            P = tl.load(at_p + inner[None, :], mask=rows < size, other=0.0)
            high, low = halves(P * (1 / UNIT_OF_P))
            at = at_jt + inner[:, None] * wide_k
            JT = tl.load(at, mask=before, other=0.0)
            JT_rest = tl.load(at + size * wide_k, mask=before, other=0.0)
            total += dot_of_parts(high, low, JT, JT_rest, tl.zeros((BLOCK, BLOCK), tl.float32))
        scales = tl.load(scales_ptr + matrix * (size + 1) + rows, mask=rows < size, other=0.0)
        units = tl.load(units_ptr + matrix * size + rows, mask=rows < size, other=0.0)
        total *= UNIT * UNIT_OF_P * eta * (scales * units)
        at = C_ptr + (matrix * size + rows) * wide_k + columns
        tl.store(at, total, mask=(rows < size) & (columns < k))


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
        # Addresses of tiles take 64 bits, offsets inside a tile 32, which saves registers.
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
        # In two halves, each of which fits the registers.
        parts = tl.permute(tl.reshape(total, (HIGH, 2, WIDE // 2)), (0, 2, 1)).split()
        columns = tl.arange(0, WIDE // 2)[None, :]
        for half in tl.static_range(2):
            across_x = columns + half * (WIDE // 2)
            at = X_ptr + (rows * x_row + across_x * x_column)
            present = (row + rows < d) & (column + across_x < k)
            tl.store(at, tl.load(at, mask=present, other=0.0) + parts[half], mask=present)
