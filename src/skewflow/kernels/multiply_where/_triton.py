"""`multiply_where_` on CUDA: tiled products, in float32 of TF32 triples, that may end at once."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

TILE, DEPTH = 128, 32
"""Rows and columns of a program's tile of the result, and of the factors at a time."""

ROWS_OF_TILES = tl.constexpr(8)
"""Tiles below one another that run together, as they share columns of B in the cache."""


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
    TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    down, across = tl.cdiv(a, BLOCK), tl.cdiv(c, BLOCK)
    matrix = (tl.program_id(0) // (down * across)).to(tl.int64)
    if tl.load(live_ptr + matrix) == 0:
        return
    tile = tl.program_id(0) % (down * across)
    band = tile // (ROWS_OF_TILES * across)
    high = min(down - band * ROWS_OF_TILES, ROWS_OF_TILES)
    row = band * ROWS_OF_TILES + tile % (ROWS_OF_TILES * across) % high
    column = tile % (ROWS_OF_TILES * across) // high
    rows = (row * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[:, None]
    columns = (column * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[None, :]
    at_a = A_ptr + matrix * stride_a[0] + rows * stride_a[1]
    at_b = B_ptr + matrix * stride_b[0] + columns * stride_b[2]
    total = tl.zeros((BLOCK, BLOCK), TYPE)
    for start in range(0, b, BLOCK_K):
        inner = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        left = (rows < a) & (inner[None, :] < b)
        right = (columns < c) & (inner[:, None] < b)
        A = tl.load(at_a + inner[None, :] * stride_a[2], mask=left, other=0.0)
        B = tl.load(at_b + inner[:, None] * stride_b[1], mask=right, other=0.0)
        if tl.float64 == TYPE:
            total += tl.sum(A[:, :, None] * B[None, :, :], axis=1)
        else:
            total += tl.dot(A, B, input_precision="tf32x3")
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
    (n, a, b), c = A.shape, B.shape[-1]
    double = out.dtype == torch.float64
    tile = 16 if double else min(TILE, max(16, triton.next_power_of_2(max(a, c))))
    each = isinstance(alpha, Tensor)
    _multiply[(n * triton.cdiv(a, tile) * triton.cdiv(c, tile),)](
        out,
        A,
        B,
        C,
        live,
        alpha.to(out.dtype) if isinstance(alpha, Tensor) else None,
        1.0 if each else alpha,
        beta,
        a,
        b,
        c,
        out.stride(),
        A.stride(),
        B.stride(),
        C.stride() if C is not None else (0, 0, 0),
        HAS_C=C is not None,
        HAS_ALPHA=each,
        TYPE=tl.float64 if double else tl.float32,
        BLOCK=tile,
        BLOCK_K=tile if double else DEPTH,
        num_warps=8 if tile == TILE else 4,
        num_stages=3,
    )
