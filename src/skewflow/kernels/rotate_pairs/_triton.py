r"""Fused CUDA form of `step_pairs`: one pass over the rows, or two over the columns.

Row i of X becomes $X_i + (\cos\theta - 1) X_i + \sin\theta X_j$. The small number $\cos\theta - 1 =
-2\sin^2(\theta/2)$ keeps digits that $\cos\theta$ rounds away, which preserves the length of the
rows over many steps. Swapping i and j changes the sign of $\theta$, so the order of the two does
not matter. The rows of the momentum turn in the same way.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .._runtime._device_triton import (
    choose,
    find_direction,
    is_live,
    load_direction,
    load_momentum,
    load_scale,
    store_finite,
)
from .._runtime._launch_triton import Launch, Launches, starts_early
from .._runtime._operands_triton import Operands, common_arguments, scale_of
from ..permutation._triton import find_pairs, find_round, load_key
from ..row_moments._triton import moment_launches
from ..update import Update
from ._columns_triton import column_launches
from ._turn_triton import rotate, rotate_finite, turn

MAX_ONE_PASS = 8192
"""Longest row that a program holds in registers."""


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def _rotate_rows(
    X_ptr,
    G_ptr,
    M_ptr,
    P_ptr,
    table_ptr,
    replayed_ptr,
    flags_ptr,
    live_ptr,
    moments_ptr,
    first_stream,
    seed,
    done: tl.int64,
    scale: tl.float64,
    momentum: tl.float64,
    n,
    d,
    k,
    num_groups,
    stride_x,
    stride_g,
    stride_m,
    stride_p,
    X_TYPE: tl.constexpr,
    G_TYPE: tl.constexpr,
    P_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HAS_M: tl.constexpr,
    HAS_P: tl.constexpr,
    NESTEROV: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    CAYLEY: tl.constexpr,
    BITS: tl.constexpr,
    NUM_ROUNDS: tl.constexpr,
    INDEPENDENT: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ONE_PASS: tl.constexpr,
    EARLY: tl.constexpr,
    READS_FIRST: tl.constexpr,
):
    if EARLY:
        gdc_launch_dependents()
        if READS_FIRST:
            gdc_wait()
    group = tl.program_id(0) % num_groups
    matrix = tl.program_id(0) // num_groups
    param, b = matrix // n, (matrix % n).to(tl.int64)
    X_ptr = choose(X_ptr, table_ptr, param, 0, X_TYPE, ALIGNED) + b * stride_x[0]
    G_ptr = choose(G_ptr, table_ptr, param, 1, G_TYPE, ALIGNED) + b * stride_g[0]
    if HAS_M:
        M_ptr = choose(M_ptr, table_ptr, param, 2, X_TYPE, ALIGNED) + b * stride_m[0]
    if HAS_P:
        P_ptr = choose(P_ptr, table_ptr, param, 3, P_TYPE, ALIGNED) + b * stride_p[0]
    mu = tl.full((), momentum, X_TYPE)

    r, sweep, num_rounds = find_round(done, replayed_ptr, d, INDEPENDENT)
    key = load_key(table_ptr, first_stream, param, b, seed, sweep)
    q = group * PAIRS + tl.arange(0, PAIRS)
    present = (q < (d + 1) // 2) & is_live(live_ptr, param)
    q = tl.where(present, q, 0)
    i, j = find_pairs(q, d, r, num_rounds, key, BITS, NUM_ROUNDS)
    factor = load_scale(scale, moments_ptr, matrix.to(tl.int64) * d, i, j, present, X_TYPE)
    i, j = i[:, None], j[:, None]
    mask_i = present[:, None]
    if EARLY:
        gdc_wait()
    # An unpaired row is its own partner: read as zeros it is not rotated, and is updated once.
    mask_j = mask_i & (i != j)

    cols = tl.arange(0, BLOCK_K)[None, :].to(tl.int64)
    if ONE_PASS:
        in_i, in_j = mask_i & (cols < k), mask_j & (cols < k)
        at_i, at_j = i * stride_x[1] + cols * stride_x[2], j * stride_x[1] + cols * stride_x[2]
        Xi = tl.load(X_ptr + at_i, mask=in_i, other=0.0)
        Xj = tl.load(X_ptr + at_j, mask=in_j, other=0.0)
        g_i, g_j = i * stride_g[1] + cols * stride_g[2], j * stride_g[1] + cols * stride_g[2]
        m_i, m_j = i * stride_m[1] + cols * stride_m[2], j * stride_m[1] + cols * stride_m[2]
        Gi, Mi = load_momentum(G_ptr, M_ptr, g_i, m_i, in_i, mu, X_TYPE, HAS_M, MAXIMIZE)
        Gj, Mj = load_momentum(G_ptr, M_ptr, g_j, m_j, in_j, mu, X_TYPE, HAS_M, MAXIMIZE)
        Di = find_direction(Gi, Mi, mu, HAS_M, NESTEROV)
        Dj = find_direction(Gj, Mj, mu, HAS_M, NESTEROV)
        omega = tl.sum(Di * Xj - Xi * Dj, axis=1)
        lost, sine = turn(factor * omega, present, flags_ptr, param, CAYLEY)
        lost, sine = lost[:, None], sine[:, None]
        Yi, Yj = rotate(Xi, Xj, lost, sine)
        tl.store(X_ptr + at_i, Yi, mask=in_i)
        tl.store(X_ptr + at_j, Yj, mask=in_j)
        if HAS_P:
            tl.store(P_ptr + i * stride_p[1] + cols * stride_p[2], Yi.to(P_TYPE), mask=in_i)
            tl.store(P_ptr + j * stride_p[1] + cols * stride_p[2], Yj.to(P_TYPE), mask=in_j)
        if HAS_M:
            Mi, Mj = rotate_finite(Mi, Mj, lost, sine)
            store_finite(M_ptr, m_i, Mi, in_i)
            store_finite(M_ptr, m_j, Mj, in_j)
    else:
        total = tl.zeros((PAIRS, BLOCK_K), X_TYPE)
        for start in range(0, k, BLOCK_K):
            c = start + cols
            in_i, in_j = mask_i & (c < k), mask_j & (c < k)
            at_i, at_j = i * stride_x[1] + c * stride_x[2], j * stride_x[1] + c * stride_x[2]
            Xi = tl.load(X_ptr + at_i, mask=in_i, other=0.0, eviction_policy="evict_last")
            Xj = tl.load(X_ptr + at_j, mask=in_j, other=0.0, eviction_policy="evict_last")
            g_i, g_j = i * stride_g[1] + c * stride_g[2], j * stride_g[1] + c * stride_g[2]
            m_i, m_j = i * stride_m[1] + c * stride_m[2], j * stride_m[1] + c * stride_m[2]
            Di = load_direction(G_ptr, M_ptr, g_i, m_i, in_i, mu, X_TYPE, HAS_M, NESTEROV, MAXIMIZE)
            Dj = load_direction(G_ptr, M_ptr, g_j, m_j, in_j, mu, X_TYPE, HAS_M, NESTEROV, MAXIMIZE)
            total += Di * Xj - Xi * Dj
        omega = tl.sum(total, axis=1)
        lost, sine = turn(factor * omega, present, flags_ptr, param, CAYLEY)
        lost, sine = lost[:, None], sine[:, None]
        if HAS_M:
            tl.debug_barrier()  # other threads have written parts of the momentum
        # Backwards, because the last rows read are still in the cache.
        for back in range(0, k, BLOCK_K):
            c = (k - 1) // BLOCK_K * BLOCK_K - back + cols
            in_i, in_j = mask_i & (c < k), mask_j & (c < k)
            at_i, at_j = i * stride_x[1] + c * stride_x[2], j * stride_x[1] + c * stride_x[2]
            Xi = tl.load(X_ptr + at_i, mask=in_i, other=0.0)
            Xj = tl.load(X_ptr + at_j, mask=in_j, other=0.0)
            Yi, Yj = rotate(Xi, Xj, lost, sine)
            tl.store(X_ptr + at_i, Yi, mask=in_i)
            tl.store(X_ptr + at_j, Yj, mask=in_j)
            if HAS_P:
                tl.store(P_ptr + i * stride_p[1] + c * stride_p[2], Yi.to(P_TYPE), mask=in_i)
                tl.store(P_ptr + j * stride_p[1] + c * stride_p[2], Yj.to(P_TYPE), mask=in_j)
            if HAS_M:
                m_i, m_j = i * stride_m[1] + c * stride_m[2], j * stride_m[1] + c * stride_m[2]
                Mi = tl.load(M_ptr + m_i, mask=in_i, other=0.0)
                Mj = tl.load(M_ptr + m_j, mask=in_j, other=0.0)
                Mi, Mj = rotate(Mi, Mj, lost, sine)
                store_finite(M_ptr, m_i, Mi, in_i)
                store_finite(M_ptr, m_j, Mj, in_j)


def plan_pairs(operands: Operands, update: Update, **tuning: int) -> Launches:
    """The launches of `step_pairs`, in place, on all parameters of one shape at once.

    Args:
        operands: The tensors; the points are float32 or float64.
        update: Switches and seed of the step; its numbers are given at each launch.
        **tuning: Overrides of the launch: `pairs`, `block_k`, `num_warps`; `rows`,
            `chunks`; `early`.
    """
    X = operands.Xs[0]
    arguments = common_arguments(operands, update)
    if X.stride(-1) != 1 and X.stride(-2) == 1:
        launches, scratch = column_launches(X, operands.num_matrices, arguments, tuning)
    else:
        launches, scratch = [_row_launch(X, operands.num_matrices, arguments, tuning)], []
    launches = [*moment_launches(operands, arguments), *launches]
    kept = [*scratch, *operands.kept]
    scale = scale_of(X.shape[-2], 2)
    return Launches(X.device, scale, launches, kept, operands.table, operands.wide)


def _row_launch(
    X: Tensor, num_matrices: int, arguments: dict[str, Any], tuning: dict[str, int]
) -> Launch:
    _, d, k = X.shape
    longest = MAX_ONE_PASS * 4 // X.element_size()
    block_k = tuning.get("block_k", min(triton.next_power_of_2(k), longest))
    many = min(1024 // block_k, 128, triton.next_power_of_2((d + 1) // 2))
    pairs = tuning.get("pairs", many if block_k < 256 else 1)
    # Few threads with many loads in flight, or many with a momentum to write: the best of a sweep.
    bytes_a_warp = 1024 if arguments["HAS_M"] else 4096
    default_warps = max(4, min(32, pairs * block_k * X.element_size() // bytes_a_warp))
    num_groups = triton.cdiv((d + 1) // 2, pairs)
    early = bool(tuning.get("early", starts_early(X.device)))
    # A program draws its rows, which needs no memory, before it waits for the previous kernel.
    read = ("table_ptr", "replayed_ptr", "live_ptr", "moments_ptr")
    tiles = {
        "PAIRS": pairs,
        "BLOCK_K": block_k,
        "ONE_PASS": block_k >= k,
        "EARLY": early,
        "READS_FIRST": any(arguments[name] is not None for name in read),
    }
    num_warps = tuning.get("num_warps", default_warps)
    options: dict[str, Any] = {"launch_pdl": True} if early else {}
    if arguments["HAS_M"] and num_warps == 16:
        options["maxnreg"] = 64  # or only one program would fit a multiprocessor
    return Launch(
        _rotate_rows,
        num_groups * num_matrices,
        {**arguments, **tiles, "num_groups": num_groups},
        num_warps=num_warps,
        **options,
    )
