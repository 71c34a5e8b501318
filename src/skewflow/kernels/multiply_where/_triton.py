"""`multiply_where_` on CUDA: tiled products of TF32 triples, which may end at once."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

from .._runtime._launch_triton import Launch

TILE, DEPTH = 128, 32
"""Rows and columns of the result tile of a program, and the depth of the factors that it reads at a
time."""

ROWS_OF_TILES = tl.constexpr(8)
"""Number of vertically adjacent tiles that run together, because they reuse columns of B in the
cache."""


@triton.jit
def tile_at(tile, down, across):
    """The row and the column of the tile with this number."""
    band = tile // (ROWS_OF_TILES * across)
    high = min(down - band * ROWS_OF_TILES, ROWS_OF_TILES)
    inside = tile % (ROWS_OF_TILES * across)
    return band * ROWS_OF_TILES + inside % high, inside // high


@triton.jit
def tile_product(
    at_a,
    at_b,
    stride_a,
    stride_b,
    inside_a,
    inside_b,
    start,
    end,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Rows of A times columns of B, summed over the inner indices from `start` to `end`.

    `at_a` (HIGH, 1) and `at_b` (1, WIDE) are the addresses of the rows and columns that exist, by
    `inside_a` and `inside_b`; their entries are `stride_a` and `stride_b` apart.
    """
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(start, end, DEPTH):
        inner = (first + tl.arange(0, DEPTH)).to(tl.int64)
        across, down = inner[None, :], inner[:, None]
        A = tl.load(at_a + across * stride_a, mask=inside_a & (across < end), other=0.0)
        B = tl.load(at_b + down * stride_b, mask=inside_b & (down < end), other=0.0)
        total += tl.dot(A, B, input_precision="tf32x3")
    return total


@triton.jit
def _multiply(
    out_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    live_ptr,
    alpha_ptr,
    alpha,
    beta,
    a,
    b,
    c,
    stride_out,
    stride_a,
    stride_b,
    stride_c,
    HAS_C: tl.constexpr,
    HAS_ALPHA: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    down, across = tl.cdiv(a, BLOCK), tl.cdiv(c, BLOCK)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    if tl.load(live_ptr + matrix) == 0:
        return
    row, column = tile_at(tl.program_id(0) % (down * across), down, across)
    rows = (row * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[:, None]
    columns = (column * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[None, :]
    at_a = A_ptr + matrix * stride_a[0] + rows * stride_a[1]
    at_b = B_ptr + matrix * stride_b[0] + columns * stride_b[2]
    total = tile_product(
        at_a, at_b, stride_a[2], stride_b[1], rows < a, columns < c, 0, b, BLOCK, BLOCK, BLOCK_K
    )
    total *= alpha
    if HAS_ALPHA:
        total *= tl.load(alpha_ptr + matrix)
    present = (rows < a) & (columns < c)
    if HAS_C:
        at_c = C_ptr + matrix * stride_c[0] + rows * stride_c[1] + columns * stride_c[2]
        total += beta * tl.load(at_c, mask=present, other=0.0)
    at = out_ptr + matrix * stride_out[0] + rows * stride_out[1] + columns * stride_out[2]
    tl.store(at, total, mask=present)


def multiply_where_(
    out: Float[Tensor, "n a c"],
    A: Float[Tensor, "n a b"],
    B: Float[Tensor, "n b c"],
    live: Bool[Tensor, "n"],
    C: Float[Tensor, "n a c"] | None,
    alpha: float | Float[Tensor, "n"],
    beta: float,
) -> None:
    """See `multiply_where_` of the package."""
    launch_of(out, A, B, live, C, alpha, beta).once()


def launch_of(
    out: Tensor,
    A: Tensor,
    B: Tensor,
    live: Tensor,
    C: Tensor | None,
    alpha: float | Tensor,
    beta: float,
) -> Launch:
    """Plan the launch, which runs once."""
    (n, a, b), c = A.shape, B.shape[-1]
    tile = min(TILE, max(16, triton.next_power_of_2(max(a, c))))
    each = isinstance(alpha, Tensor)
    arguments = {
        "out_ptr": out, "A_ptr": A, "B_ptr": B, "C_ptr": C, "live_ptr": live,
        "alpha_ptr": alpha.to(out.dtype) if isinstance(alpha, Tensor) else None,
        "alpha": 1.0 if each else alpha, "beta": beta, "a": a, "b": b, "c": c,
        "stride_out": out.stride(), "stride_a": A.stride(), "stride_b": B.stride(),
        "stride_c": C.stride() if C is not None else (0, 0, 0),
        "HAS_C": C is not None, "HAS_ALPHA": each, "BLOCK": tile, "BLOCK_K": DEPTH,
    }  # fmt: skip
    programs = n * triton.cdiv(a, tile) * triton.cdiv(c, tile)
    return Launch(_multiply, programs, arguments, num_warps=8 if tile == TILE else 4, num_stages=3)
