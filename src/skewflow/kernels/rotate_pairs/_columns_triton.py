r"""The column action of `step_pairs` on CUDA: X is stored by columns, as wide weights are.

Entries i and j of a column of X are then in the same storage row: a program reads whole storage
rows, and for each element also its partner. One program steps a small matrix. For a large matrix
the products are summed over chunks of storage rows, turned into sines, and applied.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._runtime._device_triton import choose, is_live, load_direction, load_scale, store_finite
from .._runtime._launch_triton import Launch, num_multiprocessors
from ..permutation._triton import find_partners, find_round, load_key, match_columns
from ._turn_triton import turn
from .dispatch import LONGEST_TRITON_COLUMN

MAX_SMALL = 65536
"""Largest matrix, in elements, that a single program rotates."""


@triton.jit
def _turn_columns(
    partners_ptr,
    sums_ptr,
    turns_ptr,
    flags_ptr,
    live_ptr,
    moments_ptr,
    scale: tl.float64,
    n,
    d,
    num_chunks,
    num_tiles,
    X_TYPE: tl.constexpr,
    CAYLEY: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    matrix = (tl.program_id(0) // num_tiles).to(tl.int64)
    param = tl.program_id(0) // num_tiles // n
    cols = tl.program_id(0) % num_tiles * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = (cols < d) & is_live(live_ptr, param)
    partners = tl.load(partners_ptr + matrix * d + cols, mask=mask, other=0)
    sums_ptr += matrix * num_chunks * d
    # The same order of the chunks at i and at j, so that their angles are exactly opposite.
    own, other = tl.zeros((BLOCK_D,), X_TYPE), tl.zeros((BLOCK_D,), X_TYPE)
    for _ in range(num_chunks):
        own += tl.load(sums_ptr + cols, mask=mask, other=0.0)
        other += tl.load(sums_ptr + partners, mask=mask, other=0.0)
        sums_ptr += d
    factor = load_scale(scale, moments_ptr, matrix * d, cols, partners, mask, X_TYPE)
    lost, sine = turn(factor * (own - other), mask, flags_ptr, param, CAYLEY)
    tl.store(turns_ptr + 2 * matrix * d + cols, lost, mask=mask)
    tl.store(turns_ptr + (2 * matrix + 1) * d + cols, sine, mask=mask)


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def _rotate_columns(
    X_ptr,
    G_ptr,
    M_ptr,
    P_ptr,
    table_ptr,
    replayed_ptr,
    partners_ptr,
    sums_ptr,
    turns_ptr,
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
    num_chunks,
    chunk_size,
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
    SUM: tl.constexpr,
    ROTATE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Both phases when SUM and ROTATE are set, for a matrix that a single program rotates."""
    matrix = tl.program_id(0) // num_chunks
    chunk = tl.program_id(0) % num_chunks
    param, b = matrix // n, (matrix % n).to(tl.int64)
    matrix = matrix.to(tl.int64)
    X_ptr = choose(X_ptr, table_ptr, param, 0, X_TYPE, ALIGNED) + b * stride_x[0]
    cols = tl.arange(0, BLOCK_D)
    in_d = (cols < d) & is_live(live_ptr, param)
    if SUM and ROTATE:
        r, sweep, num_rounds = find_round(done, replayed_ptr, d, INDEPENDENT)
        key = load_key(table_ptr, first_stream, param, b, seed, sweep)
        partners = find_partners(cols, d, r, num_rounds, key, BITS, NUM_ROUNDS)
    else:
        partners = tl.load(partners_ptr + matrix * d + cols, mask=in_d, other=0)
    begin = chunk * chunk_size
    end = tl.minimum(begin + chunk_size, k)
    # X has stride_d = 1 here, so 32 bits hold an offset in a row, which halves the registers.
    at_d, at_partner = cols[None, :].to(tl.int64), partners[None, :] * stride_x[1]
    lanes = tl.arange(0, ROWS)[:, None]
    if HAS_M:
        M_ptr = choose(M_ptr, table_ptr, param, 2, X_TYPE, ALIGNED) + b * stride_m[0]

    if SUM:
        G_ptr = choose(G_ptr, table_ptr, param, 1, G_TYPE, ALIGNED) + b * stride_g[0]
        mu = tl.full((), momentum, X_TYPE)
        total = tl.zeros((ROWS, BLOCK_D), X_TYPE)
        for start in range(begin, end, ROWS):
            rows = (start + lanes).to(tl.int64)
            mask = (rows < end) & in_d[None, :]
            at_g, at_m = (
                rows * stride_g[2] + at_d * stride_g[1],
                rows * stride_m[2] + at_d * stride_m[1],
            )
            D = load_direction(
                G_ptr, M_ptr, at_g, at_m, mask, mu, X_TYPE, HAS_M, NESTEROV, MAXIMIZE
            )
            total += D * tl.load(X_ptr + rows * stride_x[2] + at_partner, mask=mask, other=0.0)
        sums = tl.sum(total, axis=0)
        sums_ptr += (matrix * num_chunks + chunk) * d
        tl.store(sums_ptr + cols, sums, mask=in_d)

    if ROTATE:
        if SUM:
            tl.debug_barrier()  # wait for the sums and the momentum of the other threads
            sums -= tl.load(sums_ptr + partners, mask=in_d, other=0.0)
            factor = load_scale(scale, moments_ptr, matrix * d, cols, partners, in_d, X_TYPE)
            lost, sine = turn(factor * sums, in_d, flags_ptr, param, CAYLEY)
        else:
            lost = tl.load(turns_ptr + 2 * matrix * d + cols, mask=in_d, other=0.0)
            sine = tl.load(turns_ptr + (2 * matrix + 1) * d + cols, mask=in_d, other=0.0)
        if HAS_P:
            P_ptr = choose(P_ptr, table_ptr, param, 3, P_TYPE, ALIGNED) + b * stride_p[0]
        for start in range(begin, end, ROWS):
            rows = (start + lanes).to(tl.int64)
            mask = (rows < end) & in_d[None, :]
            at = rows * stride_x[2] + at_d * stride_x[1]
            X = tl.load(X_ptr + at, mask=mask, other=0.0)
            other = tl.load(X_ptr + rows * stride_x[2] + at_partner, mask=mask, other=0.0)
            tl.debug_barrier()  # every thread has read the row before one writes to it
            Y = X + (lost[None, :] * X + sine[None, :] * other)
            tl.store(X_ptr + at, Y, mask=mask)
            if HAS_P:
                at_p = rows * stride_p[2] + at_d * stride_p[1]
                tl.store(P_ptr + at_p, Y.to(P_TYPE), mask=mask)
            if HAS_M:
                at = rows * stride_m[2] + at_d * stride_m[1]
                M = tl.load(M_ptr + at, mask=mask, other=0.0)
                theirs = rows * stride_m[2] + partners[None, :].to(tl.int64) * stride_m[1]
                other = tl.load(M_ptr + theirs, mask=mask, other=0.0)
                tl.debug_barrier()
                M += lost[None, :] * M + sine[None, :] * other
                store_finite(M_ptr, at, M, mask)


def column_launches(
    X: Tensor, num_matrices: int, arguments: dict[str, Any], tuning: dict[str, int]
) -> tuple[list[Launch], list[Tensor]]:
    _, d, k = X.shape
    if d > LONGEST_TRITON_COLUMN:
        raise ValueError(
            "the CUDA kernel of pairs turns the columns of storage rows up to "
            f"{LONGEST_TRITON_COLUMN} long: got d={d}. Make the points row-major, or use the "
            "reference."
        )
    block_d = triton.next_power_of_2(d)
    small = d * k <= MAX_SMALL and "chunks" not in tuning
    tile = max(block_d, 8192 if small else 4096)
    rows = tuning.get("rows", min(tile // block_d, triton.next_power_of_2(k)))
    warps = tuning.get("num_warps", max(4, min(16, rows * block_d // 256)))
    chunks = 1 if small else tuning.get("chunks", _num_chunks(X, k, rows, num_matrices))
    sums = X.new_empty(num_matrices, chunks, d)
    arguments = {
        **arguments,
        "num_chunks": chunks,
        "chunk_size": triton.cdiv(k, chunks),
        "partners_ptr": None,
        "turns_ptr": None,
        "sums_ptr": sums,
        "BLOCK_D": block_d,
        "ROWS": rows,
        "SUM": True,
        "ROTATE": True,
    }
    programs = num_matrices * chunks
    if small:
        return [Launch(_rotate_columns, programs, arguments, num_warps=warps)], [sums]
    partners = X.new_empty(num_matrices, d, dtype=torch.int32)
    turns = X.new_empty(num_matrices, 2, d)
    arguments |= {"partners_ptr": partners, "turns_ptr": turns}
    num_tiles = triton.cdiv(d, 256)
    tiled = {**arguments, "num_tiles": num_tiles, "BLOCK_D": 256}
    return [
        Launch(match_columns, num_matrices * num_tiles, tiled),
        Launch(_rotate_columns, programs, {**arguments, "ROTATE": False}, num_warps=warps),
        Launch(_turn_columns, num_matrices * num_tiles, tiled),
        Launch(_rotate_columns, programs, {**arguments, "SUM": False}, num_warps=warps),
    ], [sums, partners, turns]


def _num_chunks(X: Tensor, k: int, rows: int, num_matrices: int) -> int:
    """About four programs per multiprocessor, each with at least one tile of rows."""
    programs = 4 * num_multiprocessors(X.device)
    return max(1, min(triton.cdiv(k, rows), programs // num_matrices))
