"""The CUDA kernels of `natural_factors` before its first product with H.

Matrices are stored transposed: their r columns are rows, padded with zeros to `size` rows. Factors
of products are stored as pairs of float16 with one unit for all entries, as none is larger than 1.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from ..multiply_parts._triton import store_parts, unit_for

UNIT = tl.constexpr(2.0**-13)
"""Unit of the entries of normalised columns and of T; they are at most 1, because H is at most I.
"""


@triton.jit
def tile_of(high, wide, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """The matrix of a program, and the rows and columns of its tile."""
    across = tl.cdiv(wide, WIDE)
    tiles = tl.cdiv(high, HIGH) * across
    matrix, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    rows = (tile // across * HIGH + tl.arange(0, HIGH)).to(tl.int64)[:, None]
    return matrix, rows, (tile % across * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]


@triton.jit
def _of_rows(at, stride, length, first, step, rank, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Sum the squares of the entries of every n-th row."""
    total = tl.zeros((HIGH, WIDE), tl.float64)
    columns = tl.arange(0, WIDE)[None, :]
    for begin in range(first, length, step):
        rows = (begin + tl.arange(0, HIGH)).to(tl.int64)[:, None]
        present = (rows < length) & (columns < rank)
        x = tl.load(at + rows * stride, mask=present, other=0.0).to(tl.float64)
        total += x * x
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["rank"])
def _squares(
    sums_ptr, A_ptr, B_ptr, d, k, rank, stride_a, stride_b,
    PARTIALS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sum the squares of the columns of A and of B in float64, separately for parts of the rows."""
    side, part = tl.program_id(0) // PARTIALS, tl.program_id(0) % PARTIALS
    matrix, columns = (side // 2).to(tl.int64), tl.arange(0, WIDE).to(tl.int64)[None, :]
    to = sums_ptr + (side.to(tl.int64) * PARTIALS + part) * WIDE + tl.arange(0, WIDE)
    first, step = part * HIGH, PARTIALS * HIGH
    if side % 2 == 0:
        at = A_ptr + matrix * stride_a[0] + columns * stride_a[2]
        tl.store(to, _of_rows(at, stride_a[1], d, first, step, rank, HIGH, WIDE))
    else:
        at = B_ptr + matrix * stride_b[0] + columns * stride_b[2]
        tl.store(to, _of_rows(at, stride_b[1], k, first, step, rank, HIGH, WIDE))


@triton.jit(do_not_specialize=["most", "least", "growth", "part", "longer", "rounding"])
def _decide(
    numbers_ptr, fresh_ptr, scales_ptr, unit_ptr, state_ptr, sums_ptr, H_ptr,
    n, k, size, most, least, growth, part, longer, rounding,
    PARTIALS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r"""Decide the numbers of a step, in one program for each matrix.

    `numbers` receives $|B|/\sqrt\lambda$, the term added to S, whether the factors are usable and
    whether the moment restarts; `fresh` receives the new $\sqrt\lambda$ and $c/\sqrt\lambda$.
    `scales` brings the columns of A to length one and multiplies those of B by the lengths; the
    third number of `fresh` then brings B to norm one. `unit` is that of H. A gradient shorter than
    any normal number counts as zero.
    """
    matrix = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDE)
    at = sums_ptr + matrix * 2 * PARTIALS * WIDE
    at += tl.arange(0, PARTIALS)[:, None] * WIDE + columns[None, :]
    a = tl.sqrt(tl.sum(tl.load(at), axis=0))
    b = tl.sqrt(tl.sum(tl.load(at + PARTIALS * WIDE), axis=0))
    norm = tl.sqrt(tl.sum(a * a * b * b, axis=0))
    damping = tl.load(state_ptr + matrix).to(tl.float64)
    scale = tl.load(state_ptr + n + matrix).to(tl.float64)
    usable = norm * longer <= most  # false for NaN
    restart = (norm * part > growth * damping) & (norm * part >= least) & usable
    damping = tl.where(restart, norm * part, damping)
    scale = tl.where(restart, damping * longer, scale)
    largest = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, k, BLOCK):
        rows = (first + tl.arange(0, BLOCK)).to(tl.int64)
        at_h = H_ptr + matrix * k * k + rows * (k + 1)
        largest = tl.maximum(largest, tl.load(at_h, mask=rows < k, other=0.0))
    diagonal = tl.where(restart, 1.0, tl.max(largest, axis=0))
    unit, _ = unit_for(diagonal)
    tl.store(unit_ptr + matrix, unit)
    long = norm / tl.where(damping > 0, damping, 1.0)  # after gradients of zeros only it is 0
    tl.store(numbers_ptr + matrix * 4, long.to(tl.float32))
    tl.store(numbers_ptr + matrix * 4 + 1, (1 + rounding * diagonal * long * long).to(tl.float32))
    tl.store(numbers_ptr + matrix * 4 + 2, tl.where(usable, 1.0, 0.0))
    tl.store(numbers_ptr + matrix * 4 + 3, tl.where(restart, 1.0, 0.0))
    tl.store(fresh_ptr + matrix * 3, damping.to(tl.float32))
    tl.store(fresh_ptr + matrix * 3 + 1, scale.to(tl.float32))
    some = norm >= least
    of_all = tl.where(some, 1 / tl.where(some, norm, 1.0), 0.0)
    tl.store(fresh_ptr + matrix * 3 + 2, of_all.to(tl.float32))
    at = scales_ptr + matrix * 2 * size + columns
    tl.store(at, (1 / tl.maximum(a, least)).to(tl.float32), mask=columns < size)
    tl.store(at + size, a.to(tl.float32), mask=columns < size)


@triton.jit(do_not_specialize=["even"])
def _reset_moment(H_ptr, v_ptr, numbers_ptr, k, even, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Reset H to I and v to a vector of equal entries where the moment restarts."""
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


@triton.jit(do_not_specialize=["rank"])
def _take(
    A_out_ptr, M_ptr, A_ptr, B_ptr, scales_ptr, fresh_ptr, d, k, rank, size, wide_d, wide_k,
    A_low, M_low, stride_a, stride_b,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The scaled factors as pairs: A^T, and B^T as the first rows of M^T; zeros below them."""
    down, across_d, across_k = tl.cdiv(size, HIGH), tl.cdiv(d, WIDE), tl.cdiv(k, WIDE)
    across = across_d + across_k
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    rows = (tile // across * HIGH + tl.arange(0, HIGH)).to(tl.int64)[:, None]
    column = tile % across
    scales_ptr += matrix * 2 * size + rows
    if column < across_d:
        columns = (column * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        present = (rows < size) & (columns < d)
        given = present & (rows < rank)
        at = A_ptr + matrix * stride_a[0] + rows * stride_a[2] + columns * stride_a[1]
        x = tl.load(at, mask=given, other=0.0)
        x *= tl.load(scales_ptr, mask=rows < size, other=0.0)
        at = A_out_ptr + (matrix * 2 * size + rows) * wide_d + columns
        store_parts(at, A_low, x * (1 / UNIT), present)
    else:
        columns = ((column - across_d) * WIDE + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        present = (rows < size) & (columns < k)
        given = present & (rows < rank)
        at = B_ptr + matrix * stride_b[0] + rows * stride_b[2] + columns * stride_b[1]
        x = tl.load(at, mask=given, other=0.0)
        x *= tl.load(scales_ptr + size, mask=rows < size, other=0.0)
        x *= tl.load(fresh_ptr + matrix * 3 + 2)
        at = M_ptr + (matrix * 2 * (2 * size + 1) + rows) * wide_k + columns
        store_parts(at, M_low, x * (1 / UNIT), present)


@triton.jit
def _fill(
    M_ptr, P_ptr, v_ptr, k, size, wide_k, M_low,
    PARTIALS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Fill the other rows of M^T: P^T, the total of its partial sums, and v^T."""
    matrix, rows, columns = tile_of(size + 1, k, HIGH, WIDE)
    at = P_ptr + (matrix * PARTIALS * size + rows) * k + columns
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for part in tl.static_range(PARTIALS):
        total += tl.load(at + part * size * k, mask=(rows < size) & (columns < k), other=0.0)
    v = tl.load(v_ptr + matrix * k + columns, mask=columns < k, other=0.0)
    total = tl.where(rows == size, v, total)
    at = M_ptr + (matrix * 2 * (2 * size + 1) + size + rows) * wide_k + columns
    inside = (rows <= size) & (columns < k)
    store_parts(at, M_low, total * (1 / UNIT), inside)
