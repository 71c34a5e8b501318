"""`row_moments` on CUDA: one more pass over the gradients of all parameters of one shape."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

from typing import Any

import torch
import triton
import triton.language as tl

from .._runtime._device_triton import choose, is_live, load_step
from .._runtime._launch_triton import Launch
from .._runtime._operands_triton import Operands


@triton.jit(do_not_specialize=["done", "since"])
def _row_moments(
    G_ptr,
    table_ptr,
    replayed_ptr,
    live_ptr,
    skipped_ptr,
    squares_ptr,
    moments_ptr,
    done: tl.int64,
    since: tl.int64,
    momentum: tl.float64,
    beta2: tl.float64,
    eps: tl.float64,
    n,
    d,
    k,
    num_tiles,
    stride_g,
    X_TYPE: tl.constexpr,
    G_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TINY: tl.constexpr,
):
    matrix = tl.program_id(0) // num_tiles
    param, b = matrix // n, (matrix % n).to(tl.int64)
    G_ptr = choose(G_ptr, table_ptr, param, 1, G_TYPE, ALIGNED) + b * stride_g[0]
    rows = tl.program_id(0) % num_tiles * ROWS + tl.arange(0, ROWS)
    present = (rows < d) & is_live(live_ptr, param)
    at = rows.to(tl.int64)[:, None] * stride_g[1]
    total = tl.zeros((ROWS, BLOCK_K), X_TYPE)
    for start in range(0, k, BLOCK_K):
        cols = (start + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :]
        mask = present[:, None] & (cols < k)
        G = tl.load(G_ptr + at + cols * stride_g[2], mask=mask, other=0.0).to(X_TYPE)
        total += G * G
    now = tl.sum(total, axis=1) / k
    place = matrix.to(tl.int64) * d + rows
    v = tl.load(squares_ptr + place, mask=present, other=0.0)
    taken = load_step(done, replayed_ptr) - since
    if skipped_ptr is not None:
        taken -= tl.load(skipped_ptr + param)
    t = (taken + 1).to(tl.float64)
    beta1_t = tl.exp(t * tl.log(tl.full((), momentum, tl.float64)))
    beta2_t = tl.exp(t * tl.log(tl.full((), beta2, tl.float64)))
    moved = tl.full((), beta2, X_TYPE) * v + tl.full((), 1 - beta2, X_TYPE) * now
    v = tl.where(now < float("inf"), moved, v)
    tl.store(squares_ptr + place, v, mask=present)
    root = tl.sqrt(v / tl.full((), 1 - beta2_t, X_TYPE)) + tl.full((), eps, X_TYPE)
    root *= tl.full((), (1 - beta1_t) / (1 - momentum), X_TYPE)
    tl.store(moments_ptr + place, tl.maximum(root * root, TINY), mask=present)


def moment_launches(operands: Operands, arguments: dict[str, Any]) -> list[Launch]:
    """The launch, if any, that updates `operands.squares` and fills `operands.moments`."""
    if operands.squares is None:
        return []
    _, d, k = operands.Xs[0].shape
    by_rows = operands.Gs[0].stride(-1) == 1
    block_k = min(triton.next_power_of_2(k), 512 if by_rows else 16)
    rows = max(1, min(2048 // block_k, triton.next_power_of_2(d)))
    num_tiles = triton.cdiv(d, rows)
    tiny = torch.finfo(operands.squares.dtype).tiny
    tiles = {"num_tiles": num_tiles, "ROWS": rows, "BLOCK_K": block_k, "TINY": tiny}
    return [Launch(_row_moments, operands.num_matrices * num_tiles, {**arguments, **tiles})]
