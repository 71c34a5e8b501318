r"""Fused CUDA form of `step_blocks`: Gram matrices, small exponentials, application.

A step has three launches. Each program of the first reads a stretch of the columns of one group of
blocks and writes its partial sum of $S = D_B X_B^\top$. The second adds the partial sums in a fixed
order and turns $A = -lr \cdot c\,(S - S^\top)$ into $E = \Gamma(A) - I$. The third adds $E X_B$ to
$X_B$, and $E M_B$ to the momentum, which the first has updated. Because the kernels use E instead
of $\Gamma(A)$, every rounding error is proportional to the step, and small steps drift little. The
products are of TF32 triples, as exact as float32 and much faster.

A group is a block, or, for s < 16, as many blocks as fit the 16 rows that a tensor core multiplies:
their joint A is block diagonal, and so is its exponential. Blocks of more than 64 rows are turned
by the kernels of `_action_triton.py`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import torch
import triton
import triton.language as tl
from torch import Tensor
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
from .._runtime._launch_triton import Launch, Launches, num_multiprocessors, starts_early
from .._runtime._operands_triton import Operands, common_arguments, scale_of
from ..permutation._triton import load_key
from ..row_moments._triton import moment_launches
from ..update import Update
from ._action_triton import action_launches
from ._exponential_triton import cayley, exponential, polish
from ._rows_triton import block_of, find_rows, start_of
from .dispatch import LARGEST_TRITON_BLOCK

GRAM_PROGRAMS = {16: 8, 32: 4, 64: 2, 128: 1}
APPLY_PROGRAMS = {16: 32, 32: 8, 64: 4, 128: 2}
"""Programs per multiprocessor by padded block size: the best of a sweep on one H200 up to 64; the
value for 128 was not measured."""


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def _gram(
    X_ptr,
    G_ptr,
    M_ptr,
    table_ptr,
    replayed_ptr,
    live_ptr,
    shares_ptr,
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
    share = tl.zeros((S, S), tl.float32)
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
        share = tl.dot(D, tl.trans(X), share, input_precision="tf32x3")
    if EARLY:
        gdc_launch_dependents()
    lane = tl.arange(0, S)
    shares_ptr += ((matrix.to(tl.int64) * num_groups + group) * splits + split) * (S * S)
    tl.store(shares_ptr + lane[:, None] * S + lane[None, :], share)


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def _retract(
    table_ptr,
    replayed_ptr,
    shares_ptr,
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
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    pid = tl.program_id(0).to(tl.int64)
    group = tl.program_id(0) % num_groups
    lane = tl.arange(0, S)
    tile = lane[:, None] * S + lane[None, :]
    shares_ptr += pid * splits * (S * S)
    total = tl.zeros((S, S), tl.float32)
    for first in range(0, splits, 4):
        for ahead in tl.static_range(4):  # four loads in flight
            split = first + ahead
            inside = tile < tl.where(split < splits, S * S, 0)
            total += tl.load(shares_ptr + split * (S * S) + tile, mask=inside, other=0.0)
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
def _apply(
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


def plan_blocks(operands: Operands, update: Update, block_size: int, **tuning: int) -> Launches:
    """The launches of `step_blocks`, in place, on all parameters of one shape at once.

    Args:
        operands: The tensors; the points are float32.
        update: Switches and seed of the step; its numbers are given at each launch.
        block_size: s, between 2 and `LARGEST_TRITON_BLOCK`.
        **tuning: Overrides of the launches: `splits`, `block_k`, `apply_splits`, `apply_block_k`,
            `gram_warps`, `retract_warps`, `apply_warps`, `early`, `reload`.

    Raises:
        ValueError: If the blocks are too large or the points not float32.
    """
    X = operands.Xs[0]
    largest = LARGEST_TRITON_BLOCK[update.retraction]
    if block_size > largest:
        raise ValueError(
            f"`block_size` must be at most {largest} in the CUDA kernel of "
            f"retraction={update.retraction!r}: got {block_size}."
        )
    if X.dtype != torch.float32:
        raise ValueError(f"the CUDA kernel of blocks needs float32 points: got {X.dtype}.")
    d = X.shape[1]
    num_blocks = -(-d // block_size)
    small, larger = divmod(d, num_blocks)
    most = small + bool(larger)
    pack = max(1, 16 // most)
    S = max(16, triton.next_power_of_2(most))
    num_groups = triton.cdiv(num_blocks, pack)
    programs = operands.num_matrices * num_groups
    least = 256 if S <= 64 else 32  # a column is more work for large blocks
    gram = _split(X, programs, GRAM_PROGRAMS[S], tuning.get("splits"), 256)
    apply = _split(X, programs, APPLY_PROGRAMS[S], tuning.get("apply_splits"), least)
    # A kernel may start while the previous one ends, and waits only where it needs its results.
    early = bool(tuning.get("early", starts_early(X.device)))
    chained = {"launch_pdl": True} if early else {}
    shares = X.new_empty(programs, gram["splits"], S, S)
    E = X.new_empty(programs, S, S)
    arguments = {
        **common_arguments(operands, update),
        "shares_ptr": shares,
        "E_ptr": E,
        "small": small,
        "larger": larger,
        "num_blocks": num_blocks,
        "num_groups": num_groups,
        "PACK": pack,
        "S": S,
        "EARLY": early,
    }
    block_k = {"BLOCK_K": tuning.get("block_k", 64 if S <= 64 else 32)}
    apply_block_k = {"BLOCK_K": tuning.get("apply_block_k", 64 if S <= 32 else 32)}
    launches = [
        *moment_launches(operands, arguments),
        Launch(
            _gram,
            programs * gram["splits"],
            {**arguments, **gram, **block_k},
            num_warps=tuning.get("gram_warps", S // 16),
            num_stages=3 if S <= 64 else 2,
        ),
    ]
    scale, kept = scale_of(d, block_size), [shares, E, *operands.kept]
    if S > 64:
        terms = X.new_empty(programs, dtype=torch.int32)
        arguments |= {"terms_ptr": terms, "TAIL": 32 if most <= 96 else 64}
        launches += action_launches(X, programs, arguments, gram, apply, chained, tuning)
        return Launches(X.device, scale, launches, [terms, *kept], operands.table, operands.wide)
    launches += [
        Launch(
            _retract,
            programs,
            {**arguments, **gram},
            num_warps=tuning.get("retract_warps", 1 if S == 16 else 4),
            **chained,
        ),
        Launch(
            _apply,
            programs * apply["splits"],
            {**arguments, **apply, **apply_block_k},
            num_warps=tuning.get("apply_warps", 4 if S <= 32 else 2),
            **chained,
        ),
    ]
    return Launches(X.device, scale, launches, kept, operands.table, operands.wide)


def _split(
    X: Tensor, num_programs: int, per_sm: int, splits: int | None, least: int
) -> dict[str, int]:
    """Stretches of `least` columns or more, for `per_sm` programs per multiprocessor."""
    k = X.shape[-1]
    most = per_sm * num_multiprocessors(X.device) // num_programs
    wanted = splits or max(1, min(most, k // least))
    size = triton.cdiv(triton.cdiv(k, wanted), 16) * 16  # 16, so that the loads stay wide
    return {"splits": triton.cdiv(k, size), "split_size": size}
