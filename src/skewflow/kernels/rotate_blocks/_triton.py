r"""Fused CUDA form of `step_blocks`: Gram matrices, small exponentials, application.

A step has three launches. Each program of the first reads a stretch of the columns of one group of
blocks and writes its partial sum of $S = D_B X_B^\top$. The second adds the partial sums in a fixed
order and turns $A = -lr \cdot c\,(S - S^\top)$ into $E = \Gamma(A) - I$. The third adds $E X_B$ to
$X_B$, and $E M_B$ to the momentum, which the first has updated. Because the kernels use E instead
of $\Gamma(A)$, every rounding error is proportional to the step, and small steps drift little. The
products are of TF32 triples, as exact as float32 and much faster.

A group is a block, or, for s < 16, as many blocks as fit the 16 rows that a tensor core multiplies:
their joint A is block diagonal, and so is its exponential. `_action_triton.py` has the last two
kernels for blocks of more than 64 rows.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .._runtime._device_triton import (
    choose,
    is_live,
    load_direction,
    load_scale,
    load_step,
    raise_flag,
    store_finite,
)
from ..permutation._triton import load_key
from ._exponential_triton import cayley, exponential, polish
from ._rows_triton import block_of, find_rows, start_of


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def gram(
    X_ptr,
    G_ptr,
    M_ptr,
    table_ptr,
    replayed_ptr,
    live_ptr,
    partials_ptr,
    first_stream,
    seed,
    done: tl.int64,
    momentum: tl.float64,
    n,
    d,
    k,
    small,
    larger,
    num_blocks,
    num_groups,
    splits,
    split_size,
    stride_x,
    stride_g,
    stride_m,
    X_TYPE: tl.constexpr,
    G_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HAS_M: tl.constexpr,
    NESTEROV: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    BITS: tl.constexpr,
    NUM_ROUNDS: tl.constexpr,
    PACK: tl.constexpr,
    S: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Add up D_B X_B^T over a part of the columns, and update the momentum."""
    # Groups vary fastest: of a column-major X they read the same sectors, which L2 then holds.
    pid = tl.program_id(0)
    group, split = pid % num_groups, pid // num_groups % splits
    matrix = pid // num_groups // splits
    param, b = matrix // n, (matrix % n).to(tl.int64)
    X_ptr = choose(X_ptr, table_ptr, param, 0, X_TYPE, ALIGNED) + b * stride_x[0]
    G_ptr = choose(G_ptr, table_ptr, param, 1, G_TYPE, ALIGNED) + b * stride_g[0]
    if HAS_M:
        M_ptr = choose(M_ptr, table_ptr, param, 2, X_TYPE, ALIGNED) + b * stride_m[0]
    mu = tl.full((), momentum, X_TYPE)
    key = load_key(table_ptr, first_stream, param, b, seed, load_step(done, replayed_ptr))
    rows, present = find_rows(group, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, PACK, S)
    rows, present = rows[:, None], (present & is_live(live_ptr, param))[:, None]
    begin = split * split_size
    end = tl.minimum(begin + split_size, k)
    partial = tl.zeros((S, S), tl.float32)
    for start in range(begin, end, BLOCK_K):
        cols = (start + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :]
        mask = present & (cols < end)
        at_g, at_m = (
            rows * stride_g[1] + cols * stride_g[2],
            rows * stride_m[1] + cols * stride_m[2],
        )
        D = load_direction(G_ptr, M_ptr, at_g, at_m, mask, mu, X_TYPE, HAS_M, NESTEROV, MAXIMIZE)
        at = rows * stride_x[1] + cols * stride_x[2]
        X = tl.load(X_ptr + at, mask=mask, other=0.0, eviction_policy="evict_last")
        partial = tl.dot(D, tl.trans(X), partial, input_precision="tf32x3")
    if EARLY:
        gdc_launch_dependents()
    lane = tl.arange(0, S)
    partials_ptr += ((matrix.to(tl.int64) * num_groups + group) * splits + split) * (S * S)
    tl.store(partials_ptr + lane[:, None] * S + lane[None, :], partial)


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def retract(
    table_ptr,
    replayed_ptr,
    partials_ptr,
    E_ptr,
    flags_ptr,
    moments_ptr,
    first_stream,
    seed,
    done: tl.int64,
    scale: tl.float64,
    n,
    d,
    small,
    larger,
    num_blocks,
    num_groups,
    splits,
    CAYLEY: tl.constexpr,
    BITS: tl.constexpr,
    NUM_ROUNDS: tl.constexpr,
    PACK: tl.constexpr,
    S: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Store the rotation of a group, less the identity, from the partial sums of `gram`."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    pid = tl.program_id(0).to(tl.int64)
    group = tl.program_id(0) % num_groups
    lane = tl.arange(0, S)
    tile = lane[:, None] * S + lane[None, :]
    partials_ptr += pid * splits * (S * S)
    total = tl.zeros((S, S), tl.float32)
    for first in range(0, splits, 4):
        for ahead in tl.static_range(4):  # four loads in flight
            split = first + ahead
            inside = tile < tl.where(split < splits, S * S, 0)
            total += tl.load(partials_ptr + split * (S * S) + tile, mask=inside, other=0.0)
    places = start_of(group * PACK, small, larger) + lane
    block = block_of(places, small, larger)
    last = tl.minimum((group + 1) * PACK, num_blocks)
    together = (block[:, None] == block[None, :]) & (block < last)[:, None]
    matrix = tl.program_id(0) // num_groups
    A = total - tl.trans(total)
    if moments_ptr is not None:
        b = (matrix % n).to(tl.int64)
        step = load_step(done, replayed_ptr)
        key = load_key(table_ptr, first_stream, matrix // n, b, seed, step)
        rows, _ = find_rows(group, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, PACK, S)
        i, j, begin = rows[:, None], rows[None, :], matrix.to(tl.int64) * d
        A *= load_scale(scale, moments_ptr, begin, i, j, together, tl.float32)
    else:
        A *= tl.full((), scale, tl.float32)
    A = tl.where(together, A, 0.0)
    # The eigenvalues of a skew matrix come in pairs: its spectral norm is below |A|_F / sqrt(2).
    norm = tl.sqrt(0.5 * tl.sum(tl.sum(A * A, axis=1), axis=0))
    bad = (norm < float("inf")) == 0
    raise_flag(flags_ptr, matrix // n, bad)
    A, norm = tl.where(bad, 0.0, A), tl.where(bad, 0.0, norm)
    E = polish(cayley(A, norm, S)) if CAYLEY else exponential(A, norm)
    tl.store(E_ptr + pid * (S * S) + tile, E)


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def apply(
    X_ptr,
    M_ptr,
    P_ptr,
    table_ptr,
    replayed_ptr,
    live_ptr,
    E_ptr,
    first_stream,
    seed,
    done: tl.int64,
    n,
    d,
    k,
    small,
    larger,
    num_blocks,
    num_groups,
    splits,
    split_size,
    stride_x,
    stride_m,
    stride_p,
    X_TYPE: tl.constexpr,
    P_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HAS_M: tl.constexpr,
    HAS_P: tl.constexpr,
    BITS: tl.constexpr,
    NUM_ROUNDS: tl.constexpr,
    PACK: tl.constexpr,
    S: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Rotate the rows of a group, and their momentum, by the result of `retract`."""
    # Backwards: the rows that the Gram matrices read last are still in L2.
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    group, split = pid % num_groups, pid // num_groups % splits
    matrix = pid // num_groups // splits
    param, b = matrix // n, (matrix % n).to(tl.int64)
    X_ptr = choose(X_ptr, table_ptr, param, 0, X_TYPE, ALIGNED) + b * stride_x[0]
    if HAS_M:
        M_ptr = choose(M_ptr, table_ptr, param, 2, X_TYPE, ALIGNED) + b * stride_m[0]
    if HAS_P:
        P_ptr = choose(P_ptr, table_ptr, param, 3, P_TYPE, ALIGNED) + b * stride_p[0]
    key = load_key(table_ptr, first_stream, param, b, seed, load_step(done, replayed_ptr))
    rows, present = find_rows(group, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, PACK, S)
    rows, present = rows[:, None], (present & is_live(live_ptr, param))[:, None]
    lane = tl.arange(0, S)
    E_ptr += (matrix.to(tl.int64) * num_groups + group) * (S * S)
    if EARLY:
        gdc_wait()
    E = tl.load(E_ptr + lane[:, None] * S + lane[None, :])
    begin = split * split_size
    end = tl.minimum(begin + split_size, k)
    for start in range(begin, end, BLOCK_K):
        cols = (start + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :]
        mask = present & (cols < end)
        at = rows * stride_x[1] + cols * stride_x[2]
        X = tl.load(X_ptr + at, mask=mask, other=0.0)
        X += tl.dot(E, X, input_precision="tf32x3")
        tl.store(X_ptr + at, X, mask=mask)
        if HAS_P:
            at_p = rows * stride_p[1] + cols * stride_p[2]
            tl.store(P_ptr + at_p, X.to(P_TYPE), mask=mask)
    if HAS_M:  # in a separate loop, which needs fewer registers
        for start in range(begin, end, BLOCK_K):
            cols = (start + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :]
            mask = present & (cols < end)
            at = rows * stride_m[1] + cols * stride_m[2]
            M = tl.load(M_ptr + at, mask=mask, other=0.0)
            M += tl.dot(E, M, input_precision="tf32x3")
            store_finite(M_ptr, at, M, mask)
