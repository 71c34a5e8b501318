"""Products of matrices in two float16 parts on CUDA, and the kernel that splits matrices."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

from .._runtime._launch_triton import Launch
from ..multiply_where._triton import tile_at


class Tiles(NamedTuple):
    """Sizes of a product: rows and columns of a program's tile, depth, warps and stages.

    Spilling some registers is worth it if two programs then run on a multiprocessor.
    """

    high: int
    wide: int
    depth: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int | None]:
        """Options of the compiler."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


TILES = [Tiles(128, 128, 64, 8, 3), Tiles(64, 64, 64, 4, 3)]
"""Tile sizes, largest first."""

ENOUGH = 256
"""Number of tiles that keep the device busy (measured on an H200). Large tiles are used if there
are this many of them, or twice as many if only half of the tiles are computed."""

PADDED = 64
"""Rows and columns of parts are padded with zeros to a multiple of this value, so that products
read whole tiles at aligned addresses. No tile is larger in any dimension."""


@triton.jit
def halves(x):
    """The two float16 parts of numbers below 2^16."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def store_parts(at, low, x, inside):
    """Store the two parts of numbers; `low` is the offset from the upper to the lower."""
    upper, lower = halves(x)
    tl.store(at, upper, mask=inside)
    tl.store(at + low, lower, mask=inside)


@triton.jit
def dot_of_parts(high, low, right, right_rest, total):
    """Add the product of two tiles in parts, without low times low; the small terms come first."""
    total = tl.dot(low, right, total)
    total = tl.dot(high, right_rest, total)
    return tl.dot(high, right, total)


@triton.jit
def unit_for(bound):
    """The unit in which a number up to the bound is below 2^14, and its inverse.

    Four times the bound still fits float16. The unit of NaN and infinity is NaN.
    """
    bits = bound.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    exponent = tl.maximum(bits >> 23, 14)  # for which the unit is a normal number
    unit = ((exponent - 13) << 23).to(tl.float32, bitcast=True)
    scale = ((267 - exponent) << 23).to(tl.float32, bitcast=True)
    return tl.where(exponent == 255, float("nan"), unit), scale


@triton.jit
def _split(
    out_ptr, units_ptr, given_ptr, bound_ptr, live_ptr, a, b, high, wide, stride_given,
    BOUND: tl.constexpr, HAS_LIVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The parts (n, 2, high, wide) of matrices (n, a, b), with zeros around them."""
    down, across = tl.cdiv(high, ROWS), tl.cdiv(wide, COLUMNS)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    if HAS_LIVE:  # noqa: SIM102 where it is not, there is no pointer
        if tl.load(live_ptr + matrix) == 0:
            return
    if BOUND is None:
        unit, scale = unit_for(tl.load(bound_ptr + matrix))
    else:
        unit, scale = unit_for(tl.full((), BOUND, tl.float32))
    tile = tl.program_id(0) % (down * across)
    if tile == 0:
        tl.store(units_ptr + matrix, unit)
    rows = (tile // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (tile % across * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    at = given_ptr + matrix * stride_given[0] + rows * stride_given[1] + columns * stride_given[2]
    x = tl.load(at, mask=(rows < a) & (columns < b), other=0.0)
    at = out_ptr + matrix * 2 * high * wide + rows * wide + columns
    store_parts(at, high.to(tl.int64) * wide, x * scale, (rows < high) & (columns < wide))


@triton.jit
def _store(
    total, rows, columns, present, inside, out_ptr, c, parts_ptr, parts_c, low, scale,
    HAS_OUT: tl.constexpr, HAS_PARTS: tl.constexpr,
):  # fmt: skip
    """Store a tile of the result where it is present, and its parts, which have zeros around."""
    if HAS_OUT:
        tl.store(out_ptr + rows * c + columns, total, mask=present)
    if HAS_PARTS:
        store_parts(parts_ptr + rows * parts_c + columns, low, total * scale, inside)


@triton.jit
def _multiply(
    out_ptr, parts_ptr, parts_units_ptr, A_ptr, A_units_ptr, B_ptr, B_units_ptr, C_ptr, alpha_ptr,
    live_ptr, alpha, beta, a, b, c, parts_a, parts_c, A_n, A_low, A_row, A_inner, B_n, B_low,
    B_inner, B_column, stride_c,
    HAS_OUT: tl.constexpr, HAS_PARTS: tl.constexpr, HAS_C: tl.constexpr, HAS_ALPHA: tl.constexpr,
    HAS_LIVE: tl.constexpr, SYMMETRIC: tl.constexpr, MINUS_I: tl.constexpr, HIGH: tl.constexpr,
    WIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute alpha A B + beta C, less I, into `out` (n, a, c) and parts (n, 2, parts_a, parts_c).

    Tensor cores truncate sums instead of rounding them. The errors have one sign, so they add up in
    long sums. Therefore the sums over `DEPTH` are added outside the tensor cores.
    """
    down, across = tl.cdiv(a, HIGH), tl.cdiv(c, WIDE)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    if HAS_LIVE:  # noqa: SIM102 where it is not, there is no pointer
        if tl.load(live_ptr + matrix) == 0:
            return
    row, column = tile_at(tl.program_id(0) % (down * across), down, across)
    # Addresses of tiles take 64 bits, offsets inside a tile 32, which saves registers.
    row, column = row.to(tl.int64) * HIGH, column.to(tl.int64) * WIDE
    if SYMMETRIC:  # noqa: SIM102 as above
        if row >= column + WIDE:  # below the diagonal
            return
    rows, columns = tl.arange(0, HIGH)[:, None], tl.arange(0, WIDE)[None, :]
    inner = tl.arange(0, DEPTH)
    at_a = A_ptr + matrix * A_n + row * A_row + (rows * A_row + inner[None, :] * A_inner)
    at_b = (
        B_ptr + matrix * B_n + column * B_column + (inner[:, None] * B_inner + columns * B_column)
    )
    above, before = row + rows < parts_a, column + columns < parts_c
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for _ in range(0, b, DEPTH):
        A = tl.load(at_a, mask=above, other=0.0)
        A_rest = tl.load(at_a + A_low, mask=above, other=0.0)
        B = tl.load(at_b, mask=before, other=0.0)
        B_rest = tl.load(at_b + B_low, mask=before, other=0.0)
        total += dot_of_parts(A, A_rest, B, B_rest, tl.zeros((HIGH, WIDE), tl.float32))
        at_a += DEPTH * A_inner
        at_b += DEPTH * B_inner
    total *= tl.load(A_units_ptr + matrix)
    unit = tl.load(B_units_ptr + matrix) * alpha
    if HAS_ALPHA:
        unit *= tl.load(alpha_ptr + matrix)
    rows, columns = row + rows, column + columns
    total *= unit
    present, inside = (rows < a) & (columns < c), (rows < parts_a) & (columns < parts_c)
    if HAS_C:
        at_c = C_ptr + matrix * stride_c[0] + rows * stride_c[1] + columns * stride_c[2]
        total += beta * tl.load(at_c, mask=present, other=0.0)
    if MINUS_I:
        total -= tl.where((rows == columns) & present, 1.0, 0.0)
    scale = 1.0
    if HAS_PARTS:
        scale = 1 / tl.load(parts_units_ptr + matrix)
        parts_ptr += matrix * 2 * parts_a * parts_c
    if HAS_OUT:
        out_ptr += matrix * a * c
    low = parts_a.to(tl.int64) * parts_c
    if SYMMETRIC:
        # An entry in two tiles is written by one of them, so that two runs give the same bits.
        _store(
            total, columns, rows, present & (rows < columns), inside & (rows < columns),
            out_ptr, c, parts_ptr, parts_c, low, scale, HAS_OUT, HAS_PARTS,
        )  # fmt: skip
        present, inside = present & (rows <= columns), inside & (rows <= columns)
    _store(
        total, rows, columns, present, inside,
        out_ptr, c, parts_ptr, parts_c, low, scale, HAS_OUT, HAS_PARTS,
    )  # fmt: skip


class Parts(NamedTuple):
    """Matrices in two float16 parts, upper and lower: a matrix is unit (upper + lower).

    Args:
        values: The parts of all matrices, filled up with zeros.
        units: A power of two for each matrix.
        a: Rows of a matrix.
        b: Its columns.
    """

    values: Float[Tensor, "n 2 high wide"]
    units: Float[Tensor, "n"]
    a: int
    b: int

    @property
    def mT(self) -> "Parts":  # noqa: N802 as torch calls it
        """The transposes, in the same memory."""
        return Parts(self.values.mT, self.units, self.b, self.a)


def empty_parts(n: int, a: int, b: int, units: Float[Tensor, "n"]) -> Parts:
    """Memory for parts in these units, to be filled by a launch."""
    high, wide = (triton.cdiv(length, PADDED) * PADDED for length in (a, b))
    values = torch.empty(n, 2, high, wide, dtype=torch.float16, device=units.device)
    return Parts(values, units, a, b)


def split_of(
    out: Parts,
    given: Float[Tensor, "n a b"],
    bound: float | Float[Tensor, "n"],
    live: Bool[Tensor, "n"] | None = None,
) -> Launch:
    """The launch that writes the parts of matrices, and their units, where they are live.

    Args:
        out: Where they go.
        given: The matrices.
        bound: No entry is larger than four times this bound; one, or one for each matrix in any
            float dtype.
        live: Which matrices to split; all if None.
    """
    (n, a, b), (high, wide) = given.shape, out.values.shape[2:]
    each = isinstance(bound, Tensor)
    arguments = {
        "out_ptr": out.values, "units_ptr": out.units, "given_ptr": given,
        "bound_ptr": bound if each else None, "live_ptr": live, "a": a, "b": b,
        "high": high, "wide": wide, "stride_given": given.stride(),
        "BOUND": None if each else bound, "HAS_LIVE": live is not None, "ROWS": 32, "COLUMNS": 128,
    }  # fmt: skip
    programs = n * triton.cdiv(high, 32) * triton.cdiv(wide, 128)
    return Launch(_split, programs, arguments, num_warps=4)


def product_of(
    out: Float[Tensor, "n a c"] | None,
    parts: Parts | None,
    A: Parts,
    B: Parts,
    C: Float[Tensor, "n a c"] | None = None,
    alpha: float | Float[Tensor, "n"] = 1.0,
    beta: float = 1.0,
    *,
    live: Bool[Tensor, "n"] | None = None,
    symmetric: bool = False,
    minus_identity: bool = False,
    tiles: Tiles | None = None,
) -> Launch:
    r"""The launch that computes $\alpha AB + \beta C$, or that minus I.

    Args:
        out: Where the results go, contiguous; or None.
        parts: Where their parts go, contiguous, in units that are there; or None.
        A: Left factors.
        B: Right factors.
        C: What is added; it may be `out`.
        alpha: Factor of the products, one for all or one for each.
        beta: Factor of `C`.
        live: Which matrices to compute; all if None.
        symmetric: Only entries above the diagonal are computed; they are written below it, too.
        minus_identity: I is subtracted.
        tiles: Tile sizes; by default the largest that give enough tiles.
    """
    n, (a, b), c = len(A.values), (A.a, A.b), B.b
    tile = tiles or _tiles_for(n, a, c, symmetric)
    each = isinstance(alpha, Tensor)
    _, A_low, A_row, A_inner = A.values.stride()
    _, B_low, B_inner, B_column = B.values.stride()
    arguments = {
        "out_ptr": out, "parts_ptr": None if parts is None else parts.values,
        "parts_units_ptr": None if parts is None else parts.units,
        "A_ptr": A.values, "A_units_ptr": A.units, "B_ptr": B.values, "B_units_ptr": B.units,
        "C_ptr": C, "alpha_ptr": alpha if each else None, "live_ptr": live,
        "alpha": 1.0 if each else alpha, "beta": beta, "a": a, "b": b, "c": c,
        "parts_a": A.values.shape[2], "parts_c": B.values.shape[3],
        "A_n": A.values.stride(0), "A_low": A_low, "A_row": A_row, "A_inner": A_inner,
        "B_n": B.values.stride(0), "B_low": B_low, "B_inner": B_inner, "B_column": B_column,
        "stride_c": (0, 0, 0) if C is None else C.stride(),
        "HAS_OUT": out is not None, "HAS_PARTS": parts is not None, "HAS_C": C is not None,
        "HAS_ALPHA": each, "HAS_LIVE": live is not None, "SYMMETRIC": symmetric,
        "MINUS_I": minus_identity, "HIGH": tile.high, "WIDE": tile.wide, "DEPTH": tile.depth,
    }  # fmt: skip
    return Launch(_multiply, n * _num_tiles(tile, a, c), arguments, **tile.options)


def _tiles_for(n: int, a: int, c: int, symmetric: bool) -> Tiles:
    """The largest tile size that gives enough tiles, or the smallest one."""
    for tile in TILES:
        if n * _num_tiles(tile, a, c) >= (2 * ENOUGH if symmetric else ENOUGH):
            break
    return tile


def _num_tiles(tile: Tiles, a: int, c: int) -> int:
    return triton.cdiv(a, tile.high) * triton.cdiv(c, tile.wide)


def split(A: Float[Tensor, "n a b"], bound: float | Tensor, units: Tensor) -> Parts:
    """The parts of matrices, in the order in which they lie in memory."""
    if A.stride(-1) != 1 and A.stride(-2) == 1:
        return split(A.mT, bound, units).mT
    n, a, b = A.shape
    parts = empty_parts(n, a, b, units)
    split_of(parts, A, bound).once()
    return parts


def gram_(P: Tensor, Y: Parts, live: Tensor | None = None) -> None:
    r"""The launch that sets P to $Y^\top Y - I$, for matrices that are `live`."""
    product_of(P, None, Y.mT, Y, live=live, symmetric=True, minus_identity=True).once()
