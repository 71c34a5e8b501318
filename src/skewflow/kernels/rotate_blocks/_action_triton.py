r"""Blocks of more than 64 rows on CUDA: their exponential fits no program, but its action does.

For a small rotation the series of $\exp(A)$ is applied to the rows, and $\exp(A)$ is never formed.
For a large A one program forms the exponential in memory, a few columns at a time.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .._runtime._device_triton import (
    choose,
    is_live,
    load_scale,
    load_step,
    raise_flag,
    store_finite,
)
from ..permutation._triton import load_key
from ._large_exponential_triton import (
    HEAD,
    STRIDE,
    count_terms,
    exponential_in_memory,
    load_tile,
    series,
    store_tile,
)
from ._rows_triton import find_rows

FAR = tl.constexpr(1.0)
"""Norm from which the exponential is formed: below it the series takes up to 14 terms."""


@triton.jit
def _find_parts(block, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, TAIL: tl.constexpr):
    """The rows of the two parts of a block, and which lanes hold one."""
    i, in_head = find_rows(block, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, 1, HEAD)
    j, in_tail = find_rows(
        block, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, 1, TAIL, FIRST=HEAD
    )
    return i, in_head, j, in_tail


@triton.jit
def _generate_tile(partials_ptr, splits, E_ptr, lanes, others, factor):
    """Store one tile of A; return half the sum of its squares. Partial sums have a fixed order."""
    A, B = load_tile(partials_ptr, lanes, others), load_tile(partials_ptr, others, lanes)
    for split in range(1, splits):
        A += load_tile(partials_ptr + split * (STRIDE * STRIDE), lanes, others)
        B += load_tile(partials_ptr + split * (STRIDE * STRIDE), others, lanes)
    A = factor * (A - tl.trans(B))
    store_tile(E_ptr, lanes, others, A)
    return 0.5 * tl.sum(tl.sum(A * A, axis=1), axis=0)


@triton.jit
def _load_tile_scale(scale, moments_ptr, begin, i, j, in_i, in_j):
    mask = in_i[:, None] & in_j[None, :]
    return load_scale(scale, moments_ptr, begin, i[:, None], j[None, :], mask, tl.float32)


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def generate(
    table_ptr,
    replayed_ptr,
    partials_ptr,
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
    partials_ptr += pid * splits * (STRIDE * STRIDE)
    E_ptr += pid * (STRIDE * STRIDE)
    b, step = (matrix % n).to(tl.int64), load_step(done, replayed_ptr)
    key = load_key(table_ptr, first_stream, matrix // n, b, seed, step)
    i, in_i, j, in_j = _find_parts(block, d, small, larger, num_blocks, key, BITS, NUM_ROUNDS, TAIL)
    head, tail, begin = tl.arange(0, HEAD), tl.arange(0, TAIL) + HEAD, matrix.to(tl.int64) * d
    factor = _load_tile_scale(scale, moments_ptr, begin, i, i, in_i, in_i)
    square = _generate_tile(partials_ptr, splits, E_ptr, head, head, factor)
    factor = _load_tile_scale(scale, moments_ptr, begin, i, j, in_i, in_j)
    square += _generate_tile(partials_ptr, splits, E_ptr, head, tail, factor)
    factor = _load_tile_scale(scale, moments_ptr, begin, j, i, in_j, in_i)
    square += _generate_tile(partials_ptr, splits, E_ptr, tail, head, factor)
    factor = _load_tile_scale(scale, moments_ptr, begin, j, j, in_j, in_j)
    square += _generate_tile(partials_ptr, splits, E_ptr, tail, tail, factor)
    # The eigenvalues of a skew matrix come in pairs: its spectral norm is below |A|_F / sqrt(2).
    norm = tl.sqrt(square)
    raise_flag(flags_ptr, matrix // n, (norm < float("inf")) == 0)
    terms = 0  # rotates nothing
    if norm < FAR:
        terms = count_terms(norm)
    elif norm < float("inf"):
        exponential_in_memory(
            E_ptr, partials_ptr, norm, TAIL
        )  # sums are added: their memory is free
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
    pid = tl.num_programs(0) - 1 - tl.program_id(0)  # backwards, as `_triton.apply`
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
        X, Y = series(E_ptr, 1.0, X, Y, terms, TAIL, 1, RELOAD)
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
            M, N = series(E_ptr, 1.0, M, N, terms, TAIL, 1, RELOAD)
            store_finite(M_ptr, at_i, M, in_i & in_cols)
            store_finite(M_ptr, at_j, N, in_j & in_cols)
