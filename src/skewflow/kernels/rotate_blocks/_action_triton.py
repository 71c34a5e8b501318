r"""Blocks of more than 64 rows on CUDA: their exponential fits no program, but its action does.

A program has room for products of 64 x 64 tiles. So a block has two parts, 64 rows and up to TAIL
more, and its skew A is stored in memory. For a small rotation the series of $\exp(A)$ is applied to
the rows, and $\exp(A)$ is never formed. For a large A one program forms the exponential in memory,
a few columns at a time.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .._runtime._device_triton import (
    choose,
    is_live,
    load_scale,
    load_step,
    raise_flag,
    store_finite,
)
from .._runtime._launch_triton import Launch, shared_memory
from ..permutation._triton import load_key
from ._rows_triton import find_rows

HEAD = tl.constexpr(64)
STRIDE = tl.constexpr(128)
COLUMNS = tl.constexpr(32)
"""Rows of the first part, length of a row of A in memory, columns formed at a time."""

FAR = tl.constexpr(1.0)
"""Norm from which the exponential is formed: below it the series takes up to 14 terms."""

LONGER = tl.constexpr(2.0**-34)
"""Largest relative change of a length by a rotation: a thousandth of float32's rounding, as these
changes add up."""

MOST_SHARED = 168 * 1024
"""Bytes of shared memory that `act` takes if it keeps the tiles of A."""


@triton.jit
def _load(A_ptr, rows, cols):
    return tl.load(A_ptr + rows[:, None] * STRIDE + cols[None, :])


@triton.jit
def _store(A_ptr, rows, cols, A):
    tl.store(A_ptr + rows[:, None] * STRIDE + cols[None, :], A)


@triton.jit
def _unmoved(A_ptr, number):
    """The pointer, in a form that the compiler does not see through; `number` is at least 0.

    Otherwise it would keep all tiles read in a loop in shared memory: 160 KB, more than many GPUs
    have.
    """
    return A_ptr + tl.minimum(number, 0)


@triton.jit
def _times(A_ptr, V, W, TAIL: tl.constexpr, TRANSPOSED: tl.constexpr = False):
    """The product of A, or its transpose, with (V, W), in two parts; A is in memory."""
    head, tail = tl.arange(0, HEAD), tl.arange(0, TAIL) + HEAD
    if TRANSPOSED:
        P = tl.dot(tl.trans(_load(A_ptr, head, head)), V, input_precision="tf32x3")
        P = tl.dot(tl.trans(_load(A_ptr, tail, head)), W, P, input_precision="tf32x3")
        Q = tl.dot(tl.trans(_load(A_ptr, head, tail)), V, input_precision="tf32x3")
        Q = tl.dot(tl.trans(_load(A_ptr, tail, tail)), W, Q, input_precision="tf32x3")
    else:
        P = tl.dot(_load(A_ptr, head, head), V, input_precision="tf32x3")
        P = tl.dot(_load(A_ptr, head, tail), W, P, input_precision="tf32x3")
        Q = tl.dot(_load(A_ptr, tail, head), V, input_precision="tf32x3")
        Q = tl.dot(_load(A_ptr, tail, tail), W, Q, input_precision="tf32x3")
    return P, Q


@triton.jit
def _series(
    A_ptr, factor, C, D, terms, TAIL: tl.constexpr, LAST: tl.constexpr, RELOAD: tl.constexpr
):
    r"""$C + A/1\,(C + A/2\,(C + \dots))$ down from A / terms: $\exp(A)\,C$, in two parts (C, D).

    All terms except C have the factor A, so the rounding of a small rotation is small. If the sum
    ends at A / LAST = A / 2, and C has columns of A, the result has the columns of $\exp(A) - I$.
    The A of the formula is `factor` times that in memory.
    """
    V, W = C, D
    for done in range(0, terms + 1 - LAST):
        P, Q = _times(_unmoved(A_ptr, done) if RELOAD else A_ptr, V, W, TAIL)
        weight = factor / (terms - done)
        V, W = C + weight * P, D + weight * Q
    return V, W


@triton.jit
def count_terms(norm):
    r"""The number of terms of the series for which no length changes by more than LONGER.

    An even number n of them gives $e^{i\theta}$ a modulus within $\theta^{n+2} / (n+1)!$ of 1, an
    odd number only within $\theta^{n+1} / (n+1)!$.
    """
    terms = 2
    longer = norm * norm * norm * norm / 6
    while longer > LONGER:
        longer *= norm * norm / ((terms + 2) * (terms + 3))
        terms += 2
    return terms


@triton.jit
def _exponential(A_ptr, spare_ptr, norm, TAIL: tl.constexpr):
    r"""Replace A by $\exp(A) - I$: scaling, series, and squarings with a polish after each.

    Without polishes each squaring would double the distance to a rotation, and many would overflow.
    Every pass reads one buffer and writes the other; a barrier makes the writes of the other
    threads visible.
    """
    squarings, factor = 0, 1.0
    while norm > 0.5:
        norm *= 0.5
        factor *= 0.5
        squarings += 1
    terms = count_terms(norm)
    head, tail = tl.arange(0, HEAD), tl.arange(0, TAIL) + HEAD
    tl.debug_barrier()
    for first in range(0, HEAD + TAIL, COLUMNS):
        cols = first + tl.arange(0, COLUMNS)
        C, D = factor * _load(A_ptr, head, cols), factor * _load(A_ptr, tail, cols)
        C, D = _series(A_ptr, factor, C, D, terms, TAIL, 2, True)
        _store(spare_ptr, head, cols, C)
        _store(spare_ptr, tail, cols, D)
    for _ in range(0, squarings):
        _square(spare_ptr, A_ptr, TAIL)
        _polish(A_ptr, spare_ptr, TAIL)
    tl.debug_barrier()
    for first in range(0, HEAD + TAIL, COLUMNS):
        cols = first + tl.arange(0, COLUMNS)
        _store(A_ptr, head, cols, _load(spare_ptr, head, cols))
        _store(A_ptr, tail, cols, _load(spare_ptr, tail, cols))


@triton.jit
def _square(E_ptr, to_ptr, TAIL: tl.constexpr):
    """(I + E)^2 - I = 2 E + E^2, from one buffer to the other."""
    head, tail = tl.arange(0, HEAD), tl.arange(0, TAIL) + HEAD
    tl.debug_barrier()
    for first in range(0, HEAD + TAIL, COLUMNS):
        cols = first + tl.arange(0, COLUMNS)
        C, D = _load(E_ptr, head, cols), _load(E_ptr, tail, cols)
        P, Q = _times(_unmoved(E_ptr, first), C, D, TAIL)
        _store(to_ptr, head, cols, 2 * C + P)
        _store(to_ptr, tail, cols, 2 * D + Q)


@triton.jit
def _polish(E_ptr, to_ptr, TAIL: tl.constexpr):
    """The step of `_exponential_triton.polish`, from one buffer to the other."""
    head, tail = tl.arange(0, HEAD), tl.arange(0, TAIL) + HEAD
    tl.debug_barrier()
    for first in range(0, HEAD + TAIL, COLUMNS):
        cols = first + tl.arange(0, COLUMNS)
        C, D = _load(E_ptr, head, cols), _load(E_ptr, tail, cols)
        F, H = _times(_unmoved(E_ptr, first), C, D, TAIL, TRANSPOSED=True)
        F += C + tl.trans(_load(E_ptr, cols, head))
        H += D + tl.trans(_load(E_ptr, cols, tail))
        P, Q = _times(_unmoved(E_ptr, first), F, H, TAIL)
        _store(to_ptr, head, cols, C - 0.5 * (F + P))
        _store(to_ptr, tail, cols, D - 0.5 * (H + Q))


@triton.jit
def _find_parts(block, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, TAIL: tl.constexpr):
    """The rows of the two parts of a block, and which lanes hold one."""
    i, in_head = find_rows(block, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, 1, HEAD)
    j, in_tail = find_rows(
        block, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, 1, TAIL, FIRST=HEAD
    )
    return i, in_head, j, in_tail


@triton.jit
def _generate_tile(shares_ptr, splits, E_ptr, lanes, others, factor):
    """Store one tile of A; return half the sum of its squares. Partial sums have a fixed order."""
    A, B = _load(shares_ptr, lanes, others), _load(shares_ptr, others, lanes)
    for split in range(1, splits):
        A += _load(shares_ptr + split * (STRIDE * STRIDE), lanes, others)
        B += _load(shares_ptr + split * (STRIDE * STRIDE), others, lanes)
    A = factor * (A - tl.trans(B))
    _store(E_ptr, lanes, others, A)
    return 0.5 * tl.sum(tl.sum(A * A, axis=1), axis=0)


@triton.jit
def _load_tile_scale(scale, moments_ptr, begin, i, j, in_i, in_j):
    mask = in_i[:, None] & in_j[None, :]
    return load_scale(scale, moments_ptr, begin, i[:, None], j[None, :], mask, tl.float32)


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def generate(
    table_ptr,
    replayed_ptr,
    shares_ptr,
    E_ptr,
    terms_ptr,
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
    splits,
    BITS: tl.constexpr,
    NUM_ROUNDS: tl.constexpr,
    TAIL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Store A and the number of terms for `act`; from the norm FAR on exp(A) - I and one term."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    pid = tl.program_id(0).to(tl.int64)
    block, matrix = tl.program_id(0) % num_blocks, tl.program_id(0) // num_blocks
    shares_ptr += pid * splits * (STRIDE * STRIDE)
    E_ptr += pid * (STRIDE * STRIDE)
    b, step = (matrix % n).to(tl.int64), load_step(done, replayed_ptr)
    key = load_key(table_ptr, first_stream, matrix // n, b, seed, step)
    i, in_i, j, in_j = _find_parts(block, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, TAIL)
    head, tail, begin = tl.arange(0, HEAD), tl.arange(0, TAIL) + HEAD, matrix.to(tl.int64) * d
    factor = _load_tile_scale(scale, moments_ptr, begin, i, i, in_i, in_i)
    square = _generate_tile(shares_ptr, splits, E_ptr, head, head, factor)
    factor = _load_tile_scale(scale, moments_ptr, begin, i, j, in_i, in_j)
    square += _generate_tile(shares_ptr, splits, E_ptr, head, tail, factor)
    factor = _load_tile_scale(scale, moments_ptr, begin, j, i, in_j, in_i)
    square += _generate_tile(shares_ptr, splits, E_ptr, tail, head, factor)
    factor = _load_tile_scale(scale, moments_ptr, begin, j, j, in_j, in_j)
    square += _generate_tile(shares_ptr, splits, E_ptr, tail, tail, factor)
    # The eigenvalues of a skew matrix come in pairs: its spectral norm is below |A|_F / sqrt(2).
    norm = tl.sqrt(square)
    raise_flag(flags_ptr, matrix // n, (norm < float("inf")) == 0)
    terms = 0  # rotates nothing
    if norm < FAR:
        terms = count_terms(norm)
    elif norm < float("inf"):
        _exponential(E_ptr, shares_ptr, norm, TAIL)  # sums are added: their memory is free
        terms = 1
    tl.store(terms_ptr + pid, terms)


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def act(
    X_ptr,
    M_ptr,
    P_ptr,
    table_ptr,
    replayed_ptr,
    live_ptr,
    E_ptr,
    terms_ptr,
    first_stream,
    seed,
    done: tl.int64,
    n,
    d,
    k,
    small,
    larger,
    num_blocks,
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
    TAIL: tl.constexpr,
    RELOAD: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Rotate the rows of a block and its momentum by the result of `generate`."""
    pid = tl.num_programs(0) - 1 - tl.program_id(0)  # backwards, as `_apply`
    block, split = pid % num_blocks, pid // num_blocks % splits
    matrix = pid // num_blocks // splits
    param, b = matrix // n, (matrix % n).to(tl.int64)
    X_ptr = choose(X_ptr, table_ptr, param, 0, X_TYPE, ALIGNED) + b * stride_x[0]
    if HAS_M:
        M_ptr = choose(M_ptr, table_ptr, param, 2, X_TYPE, ALIGNED) + b * stride_m[0]
    if HAS_P:
        P_ptr = choose(P_ptr, table_ptr, param, 3, P_TYPE, ALIGNED) + b * stride_p[0]
    key = load_key(table_ptr, first_stream, param, b, seed, load_step(done, replayed_ptr))
    i, in_i, j, in_j = _find_parts(block, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, TAIL)
    live = is_live(live_ptr, param)
    i, in_i, j, in_j = i[:, None], (in_i & live)[:, None], j[:, None], (in_j & live)[:, None]
    place = matrix.to(tl.int64) * num_blocks + block
    if EARLY:
        gdc_wait()
    terms = tl.load(terms_ptr + place)
    E_ptr += place * (STRIDE * STRIDE)
    begin = split * split_size
    end = tl.minimum(begin + split_size, k)
    for start in range(begin, end, BLOCK_K):
        cols = (start + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :]
        in_cols = cols < end
        at_i, at_j = i * stride_x[1] + cols * stride_x[2], j * stride_x[1] + cols * stride_x[2]
        X = tl.load(X_ptr + at_i, mask=in_i & in_cols, other=0.0)
        Y = tl.load(X_ptr + at_j, mask=in_j & in_cols, other=0.0)
        X, Y = _series(E_ptr, 1.0, X, Y, terms, TAIL, 1, RELOAD)
        tl.store(X_ptr + at_i, X, mask=in_i & in_cols)
        tl.store(X_ptr + at_j, Y, mask=in_j & in_cols)
        if HAS_P:
            at_i, at_j = i * stride_p[1] + cols * stride_p[2], j * stride_p[1] + cols * stride_p[2]
            tl.store(P_ptr + at_i, X.to(P_TYPE), mask=in_i & in_cols)
            tl.store(P_ptr + at_j, Y.to(P_TYPE), mask=in_j & in_cols)
    if HAS_M:  # in a separate loop, which needs fewer registers
        for start in range(begin, end, BLOCK_K):
            cols = (start + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :]
            in_cols = cols < end
            at_i, at_j = i * stride_m[1] + cols * stride_m[2], j * stride_m[1] + cols * stride_m[2]
            M = tl.load(M_ptr + at_i, mask=in_i & in_cols, other=0.0)
            N = tl.load(M_ptr + at_j, mask=in_j & in_cols, other=0.0)
            M, N = _series(E_ptr, 1.0, M, N, terms, TAIL, 1, RELOAD)
            store_finite(M_ptr, at_i, M, in_i & in_cols)
            store_finite(M_ptr, at_j, N, in_j & in_cols)


def action_launches(
    X: Tensor,
    programs: int,
    arguments: dict[str, Any],
    gram: dict[str, int],
    apply: dict[str, int],
    chained: dict[str, bool],
    tuning: dict[str, int],
) -> list[Launch]:
    """The launches that follow the partial sums of S, given the arguments of `plan_blocks`."""
    reload = bool(tuning.get("reload", shared_memory(X.device) < MOST_SHARED))
    block_k = tuning.get("apply_block_k", 16 if reload else 32)
    return [
        Launch(
            generate,
            programs,
            {**arguments, **gram},
            num_warps=tuning.get("retract_warps", 4),
            num_stages=1,
            **chained,
        ),
        Launch(
            act,
            programs * apply["splits"],
            {**arguments, **apply, "BLOCK_K": block_k, "RELOAD": reload},
            num_warps=tuning.get("apply_warps", 4 if reload else 8),
            num_stages=1,
            **chained,
        ),
    ]
