r"""Products of matrices whose rows are split into float16 parts with a unit for each row.

A float32 number is $u(h + l)$ with two float16 numbers of 11 bits and a power of two u, the unit of
its row. `split` of the reference defines it.

Three products of such parts, $hh' + hl' + lh'$, have the error $2^{-22}$ of TF32 triples at twice
their speed, and a factor is split once, not at every use. Tensor cores truncate sums instead of
rounding them, so no sum stays in them for more than `DEPTH` terms, unless low precision suffices.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from .._runtime._launch_triton import Launch
from ..multiply_where._triton import tile_at
from ._triton import Tiles, dot_of_parts, halves

UNIT = tl.constexpr(2.0**-15)
"""Unit of the parts of X and T, whose entries are at most 1."""

MULTIPLY, MULTIPLY_SMALL = Tiles(128, 64, 32, 8, 3), Tiles(64, 64, 32, 4, 3)
"""Tile sizes. The small ones serve products with few large tiles. Each tile has two sums, one in
the tensor cores and the total: tiles of 128 x 128 would use so many registers that only one program
runs at a time."""

DEEP, DEEP_SMALL = Tiles(128, 64, 64, 8, 3), Tiles(64, 64, 64, 4, 3)
"""Tile sizes for products whose errors change the direction of a step but not its orthogonality:
the tensor cores sum twice as many terms, which is faster."""

BLOCK = 1024
"""Number of partial sums that a program adds up."""

ENOUGH, MANY = 128, 256
"""Number of programs that keep the device busy, and the number to aim at when sums can be split."""


@triton.jit
def magnitude(x):
    """The bits of numbers without their signs; they have the order of the magnitudes."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_and_unit(most):
    """The scale and the unit of each row, powers of two and inverse to each other.

    They follow from the bits of the largest entry: the scale brings it between 2^14 and 2^15,
    unless the unit would not be a normal number. The unit of a row with NaN or infinity is NaN.
    """
    exponent = tl.maximum(tl.max(most, axis=1) >> 23, 15)
    scale = ((268 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
    unit = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    return scale, tl.where(exponent == 255, float("nan"), unit)


@triton.jit
def largest(at, inside, stride, length, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """The largest magnitudes of rows, reduced to `WIDE` values for each."""
    most = tl.zeros((ROWS, WIDE), tl.int32)
    for first in range(0, length, WIDE):
        inner = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        x = tl.load(at + inner * stride, mask=inside & (inner < length), other=0.0)
        most = tl.maximum(most, magnitude(x))
    return most


@triton.jit
def split_rows(
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

    `at` (ROWS, 1) are the addresses of the rows; those that are not `inside` are zeros.
    """
    scale, unit = scale_and_unit(largest(at, inside, stride, length, ROWS, WIDE))
    for first in range(0, length, WIDE):
        inner = (first + tl.arange(0, WIDE)).to(tl.int64)[None, :]
        x = tl.load(at + inner * stride, mask=inside & (inner < length), other=0.0)
        high, low = halves(x * scale)
        tl.store(at_high + inner * stride_out, high, mask=inner < length)
        tl.store(at_low + inner * stride_out, low, mask=inner < length)
    return unit


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
    """Split the rows of a matrix; `low` is the offset from the higher to the lower parts."""
    if FOURS:
        length, given_row, given_n = length // 4 * 4, given_row // 4 * 4, given_n // 4 * 4
    tiles = rows // ROWS
    matrix = (tl.program_id(0) // tiles).to(tl.int64)
    here = (tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    down = here[:, None]
    at = given_ptr + matrix * given_n + down * given_row
    high = out_ptr + matrix * out_n + down * out_row
    unit = split_rows(at, down >= 0, given_inner, length, high, high + low, out_inner, ROWS, WIDE)
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
    span,
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

    Each partial sum over b is a separate matrix of `out`. Pairs are padded with zeros behind b.
    `UPRIGHT`: the columns of X are contiguous, not its rows. `FOURS`: see `fours`. `HAS_UNIT`: each
    X has a unit. `COARSE`: multiply only the higher parts, which have the precision of TF32.
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
    for first in range(split * span, min(split * span + span, b), DEPTH):
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
def _add_partials(out_ptr, partials_ptr, length, PARTIALS: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the partial sums (n, PARTIALS, length), always in the same order."""
    blocks = tl.cdiv(length, BLOCK)
    matrix = (tl.program_id(0) // blocks).to(tl.int64)
    places = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    at = partials_ptr + matrix * PARTIALS * length + places
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTIALS):
        total += tl.load(at + part * length, mask=places < length, other=0.0)
    tl.store(out_ptr + matrix * length + places, total, mask=places < length)


def fours(*lengths: int) -> bool:
    """Whether all are multiples of four, so that the compiler can assume aligned reads of 16 bytes.

    The compiler itself detects multiples of 16.
    """
    return all(x % 4 == 0 for x in lengths) and any(x % 16 for x in lengths)


def layout_of(X: Float[Tensor, "n d k"]) -> dict[str, bool]:
    """Arguments of the kernels that describe the memory layout of X."""
    upright = X.stride(-2) == 1 != X.stride(-1)
    known = 1 in X.stride()[-2:]
    lengths = (*X.shape[-2:], X.stride(-1 if upright else -2), X.stride(0))
    return {"FOURS": known and fours(*lengths), "UPRIGHT": upright}


def cut_of(n: int, a: int, b: int, c: int, *, deep: bool = False) -> tuple[Tiles, int, int]:
    """The tiles of a product (a, b) (b, c), and how its sums are split: length and number.

    Each part of a split sum has at least 256 terms.
    """
    for tile in (DEEP, DEEP_SMALL) if deep else (MULTIPLY, MULTIPLY_SMALL):
        tiles = n * triton.cdiv(a, tile.high) * triton.cdiv(c, tile.wide)
        splits = max(1, min(MANY // tiles, b // 256))
        if tiles * splits >= ENOUGH:
            break
    span = triton.cdiv(triton.cdiv(b, splits), tile.depth) * tile.depth
    return tile, span, triton.cdiv(b, span)


def row_product_of(
    out: Float[Tensor, "n splits a c"],
    left: Float[Tensor, "n 2 a wide"],
    left_units: Float[Tensor, "n a"],
    right: Tensor,
    right_units: Float[Tensor, "n c"] | Float[Tensor, "n"] | None,
    cut: tuple[Tiles, int, int],
    *,
    coarse: bool = False,
) -> Launch:
    """Products of pairs and other pairs, X, or matrices with units; partial sums are separate.

    Coarse products have the precision of TF32.
    """
    n, _, a, _ = left.shape
    (b, c), (tile, span, splits) = right.shape[-2:], cut
    pairs = right.dtype == torch.float16
    arguments = {
        "out_ptr": out, "left_ptr": left, "left_units_ptr": left_units, "right_ptr": right,
        "right_units_ptr": right_units, "a": a, "b": b, "c": c, "span": span, "splits": splits,
        "left_low": left.stride(1), "left_n": left.stride(0), "stride_left": left.stride(2),
        "left_units_n": left_units.stride(0), "right_low": right.stride(1),
        "right_units_n": 0 if right_units is None else right_units.stride(0),
        "right_n": right.stride(0), "stride_ri": right.stride(-2), "stride_rj": right.stride(-1),
        "stride_out": out.stride(2), "stride_out_n": out.stride(0) // splits,
        "SPLIT": pairs, "HAS_UNIT": right_units is not None and not pairs, "HIGH": tile.high,
        "WIDE": tile.wide, "DEPTH": tile.depth, "COARSE": coarse, **layout_of(right),
    }  # fmt: skip
    if pairs:  # their rows are padded
        arguments["FOURS"] = False
    programs = n * splits * triton.cdiv(a, tile.high) * triton.cdiv(c, tile.wide)
    return Launch(_multiply, programs, arguments, **tile.options)


def summed(partials: Float[Tensor, "n partials a b"]) -> Float[Tensor, "n a b"]:
    """Memory for the total of partial sums; a single one needs none."""
    return partials[:, 0] if partials.shape[1] == 1 else torch.zeros_like(partials[:, 0])


def sum_of(out: Float[Tensor, "n a b"], partials: Float[Tensor, "n partials a b"]) -> list[Launch]:
    """The launches that add up partial sums; a single one needs none."""
    n, num, a, b = partials.shape
    arguments = {"out_ptr": out, "partials_ptr": partials, "length": a * b}
    arguments |= {"PARTIALS": num, "BLOCK": BLOCK}
    launch = Launch(_add_partials, n * triton.cdiv(a * b, BLOCK), arguments)
    return [] if num == 1 else [launch]


def split_rows_of(
    out: Float[Tensor, "n rows length"],
    units: Float[Tensor, "n rows"],
    given: Float[Tensor, "n rows length"],
    low: int,
    rows: int,
    wide: int,
) -> Launch:
    """The launch that splits some rows of a matrix; `low` is the offset of the lower parts."""
    n, num, length = given.shape[0], out.shape[1], given.shape[2]
    arguments = {
        "out_ptr": out, "units_ptr": units, "given_ptr": given, "rows": num, "length": length,
        "low": low, "out_n": out.stride(0), "out_row": out.stride(1), "out_inner": out.stride(2),
        "units_n": units.stride(0), "given_n": given.stride(0), "given_row": given.stride(1),
        "given_inner": given.stride(2), "ROWS": rows, "WIDE": wide,
        "FOURS": given.stride(2) == 1 and fours(length, *given.stride()[:2]),
    }  # fmt: skip
    return Launch(_split, n * num // rows, arguments, num_warps=4)
