"""The inverses of the Cholesky factors of small matrices on CUDA, each in one program."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl
from torch import Tensor

from .._runtime._launch_triton import Launch

ROWS = 16
"""Rows and columns of a diagonal block."""


@triton.jit
def _of_block(N, SIZE: tl.constexpr):
    r"""$L^{-1}$ for $N = LL^\top$, by elimination.

    Elimination takes N to $DL'^\top$, and I to the inverse of the unit factor L'. One matrix M
    holds both: the remainder of N in the columns not yet eliminated, the inverse in the others. The
    remainder is symmetric, so its row equals its column.
    """
    at = tl.arange(0, SIZE)
    i, j = at[:, None], at[None, :]
    M, pivots = N, tl.full((SIZE,), 1.0, tl.float32)
    for c in range(SIZE):
        row = tl.sum(tl.where(i == c, M, 0.0), axis=0)
        pivot = tl.sum(tl.where(at == c, row, 0.0), axis=0)
        factor = tl.where(at > c, row / pivot, 0.0)
        row = tl.where(at == c, 1.0, row)
        M = tl.where((j == c) & (i > c), 0.0, M) - factor[:, None] * row[None, :]
        pivots = tl.where(at == c, pivot, pivots)
    # A pivot that is not positive has no root, so the result is NaN.
    roots = tl.where(pivots > 0, tl.sqrt(tl.maximum(pivots, 0.0)), float("nan"))
    return tl.where(j < i, M, tl.where(i == j, 1.0, 0.0)) / roots[:, None]


@triton.jit
def _inverse_root(
    out_ptr,
    live_ptr,
    panel_ptr,
    S_ptr,
    numbers_ptr,
    r,
    out_row,
    S_row,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same elimination of cI + bbS by blocks of rows, which all threads process in turn.

    `numbers` (n, 4) are b, c, whether the matrix is live, and an unused number. `live` receives
    whether the matrix was live and had a factor.
    """
    matrix = tl.program_id(0).to(tl.int64)
    at, small = tl.arange(0, SIZE), tl.arange(0, BLOCK)
    i, j = at[:, None], at[None, :]
    panel_ptr += matrix * BLOCK * SIZE
    S_ptr += matrix * r * S_row
    out_ptr += matrix * r * out_row
    b, c = tl.load(numbers_ptr + matrix * 4), tl.load(numbers_ptr + matrix * 4 + 1)
    usable = tl.load(numbers_ptr + matrix * 4 + 2)
    inside = (i < r) & (j < r)
    S = tl.load(S_ptr + i * S_row + j, mask=inside, other=0.0)
    S += tl.load(S_ptr + j * S_row + i, mask=inside, other=0.0)
    one = tl.where(i == j, 1.0, 0.0)
    M = tl.where(inside, c * one + 0.5 * b * b * S, one)
    nothing = 0.0 * usable
    for first in range(0, SIZE, BLOCK):
        rows = first + small[:, None]
        mine = (i >= first) & (i < first + BLOCK)
        tl.store(panel_ptr + (i - first) * SIZE + j, M, mask=mine)
        tl.debug_barrier()
        root = _of_block(tl.load(panel_ptr + small[:, None] * SIZE + first + small[None, :]), BLOCK)
        panel = tl.load(panel_ptr + small[:, None] * SIZE + j)
        tl.debug_barrier()
        own = (j >= first) & (j < first + BLOCK)
        panel = tl.where(own, tl.where(rows == j, 1.0, 0.0), panel)
        Z = tl.dot(root, panel, input_precision="tf32x3")
        below = tl.where(j <= rows, Z, 0.0)
        tl.store(out_ptr + rows * out_row + j, below, mask=(rows < r) & (j < r))
        nothing += tl.sum(0.0 * Z)
        right = tl.where(j >= first + BLOCK, Z, 0.0)
        M = tl.where((i >= first + BLOCK) & own, 0.0, M)
        M -= tl.dot(tl.trans(right), Z, input_precision="tf32x3")
    tl.store(live_ptr + matrix, (usable > 0) & (nothing == 0))


def padded(r: int) -> int:
    """The number of rows of the padded matrix of the elimination."""
    return max(ROWS, int(triton.next_power_of_2(r)))


def inverse_root_of(
    out: Tensor, live: Tensor, panel: Tensor, S: Tensor, numbers: Tensor, r: int
) -> Launch:
    r"""The launch that finds $L^{-1}$ for the Cholesky factor L of $cI + b^2 S$.

    Args:
        out: Where they go, as the first r columns of (n, r, any).
        live: Which matrices were requested and had a factor, a bool for each.
        panel: Memory of (n, ROWS, p) numbers, with the `padded` p.
        S: Matrices that are symmetric up to rounding, the first r columns of (n, r, any).
        numbers: b, c, 1.0 for matrices that are requested, and an unused number (n, 4).
        r: Rows.
    """
    size = padded(r)
    arguments = {
        "out_ptr": out, "live_ptr": live, "panel_ptr": panel, "S_ptr": S,
        "numbers_ptr": numbers, "r": r, "out_row": out.stride(1), "S_row": S.stride(1),
        "SIZE": size, "BLOCK": ROWS,
    }  # fmt: skip
    return Launch(_inverse_root, len(live), arguments, num_warps=8 if size > 64 else 4)
