"""The keyed permutation inside a CUDA kernel.

The device functions draw the same rows as the reference, bit by bit.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from .._runtime._device_triton import TABLE_COLUMNS, load_step
from .reference import num_rounds

GOLDEN = tl.constexpr(0x9E3779B9)


@triton.jit
def mix(x):
    """`reference.mix` on uint32, where products wrap around."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def make_key(seed, stream, time):
    """`reference.make_key` of int64 scalars: a uint32."""
    key = mix(seed.to(tl.uint32) ^ 0x243F6A88)
    key = mix(key ^ (seed >> 32).to(tl.uint32))
    key = mix(key ^ stream.to(tl.uint32))
    key = mix(key ^ time.to(tl.uint32))
    return mix(key ^ (time >> 32).to(tl.uint32))


@triton.jit
def _forward(x, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr):
    low: tl.constexpr = (BITS + 1) // 2
    left = x >> low
    right = x & ((1 << low) - 1)
    for _ in tl.static_range(NUM_ROUNDS):
        left = left ^ (mix(right ^ key) & ((1 << (BITS - low)) - 1))
        key += GOLDEN
        right = right ^ (mix(left ^ key) & ((1 << low) - 1))
        key += GOLDEN
    return (left << low) | right


@triton.jit
def _backward(x, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr):
    low: tl.constexpr = (BITS + 1) // 2
    left = x >> low
    right = x & ((1 << low) - 1)
    for _ in tl.static_range(2 * NUM_ROUNDS):
        key += GOLDEN
    for _ in tl.static_range(NUM_ROUNDS):
        key -= GOLDEN
        right = right ^ (mix(left ^ key) & ((1 << low) - 1))
        key -= GOLDEN
        left = left ^ (mix(right ^ key) & ((1 << (BITS - low)) - 1))
    return (left << low) | right


@triton.jit
def permute(x, d, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr, INVERSE: tl.constexpr = False):
    """Where the permutation of 0..d-1, or its inverse, sends each entry of a vector in 0..d-1.

    BITS and NUM_ROUNDS are those of `permutation_options(d)`; the result is int32.
    """
    x = x.to(tl.uint32)
    todo = x < d.to(tl.uint32)
    walking = d > 0
    while walking:
        if INVERSE:
            moved = _backward(x, key, BITS, NUM_ROUNDS)
        else:
            moved = _forward(x, key, BITS, NUM_ROUNDS)
        x = tl.where(todo, moved, x)
        todo = x >= d.to(tl.uint32)
        walking = tl.max(todo.to(tl.int32), axis=0) > 0
    return x.to(tl.int32)


@triton.jit
def load_key(table_ptr, first_stream, param, b, seed, time):
    """The key of matrix b of a parameter; without a table, it starts at `first_stream`."""
    if table_ptr is not None:
        first = tl.load(table_ptr + param * TABLE_COLUMNS + 4)
    else:
        first = first_stream.to(tl.int64)
    return make_key(seed.to(tl.int64), first + b, time)


@triton.jit
def find_round(done, replayed_ptr, d, INDEPENDENT: tl.constexpr):
    """The number of the sweep, the round in it, and the number of rounds of a sweep.

    Independent matchings are the first rounds of as many sweeps.
    """
    num_rounds = d - 1 + d % 2
    step = load_step(done, replayed_ptr)
    if INDEPENDENT:
        step *= num_rounds
    return (step % num_rounds).to(tl.int32), step // num_rounds, num_rounds


@triton.jit
def find_pairs(q, d, r, num_rounds, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr):
    """The rows of pair number q, as in `reference.matching_at`; for odd d, pair 0 is one row."""
    first, second = r + q, r - q
    first = tl.where(first >= num_rounds, first - num_rounds, first)
    second = tl.where(second < 0, second + num_rounds, second)
    second = tl.where((q == 0) & (d % 2 == 0), d - 1, second)
    i = permute(first, d, key, BITS, NUM_ROUNDS)
    return i.to(tl.int64), permute(second, d, key, BITS, NUM_ROUNDS).to(tl.int64)


@triton.jit
def find_partners(cols, d, r, num_rounds, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr):
    """The partner of each row: on the circle x is paired with 2r - x, and r with the centre."""
    x = permute(tl.where(cols < d, cols, 0), d, key, BITS, NUM_ROUNDS, INVERSE=True)
    y = 2 * r - x
    y = tl.where(y < 0, y + num_rounds, y)
    y = tl.where(y >= num_rounds, y - num_rounds, y)
    if d % 2 == 0:
        y = tl.where(x == r, d - 1, tl.where(x == d - 1, r, y))
    return permute(y, d, key, BITS, NUM_ROUNDS)


@triton.jit(do_not_specialize=["first_stream", "seed", "done"])
def match_columns(
    partners_ptr,
    table_ptr,
    replayed_ptr,
    first_stream,
    seed,
    done: tl.int64,
    n,
    d,
    num_tiles,
    BITS: tl.constexpr,
    NUM_ROUNDS: tl.constexpr,
    INDEPENDENT: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    matrix = tl.program_id(0) // num_tiles
    cols = tl.program_id(0) % num_tiles * BLOCK_D + tl.arange(0, BLOCK_D)
    r, sweep, num_rounds = find_round(done, replayed_ptr, d, INDEPENDENT)
    key = load_key(table_ptr, first_stream, matrix // n, (matrix % n).to(tl.int64), seed, sweep)
    partners = find_partners(cols, d, r, num_rounds, key, BITS, NUM_ROUNDS)
    tl.store(partners_ptr + matrix.to(tl.int64) * d + cols, partners, mask=cols < d)


def permutation_options(d: int) -> dict[str, int]:
    """The compile-time numbers of `permute`."""
    return {"BITS": max(1, (d - 1).bit_length()), "NUM_ROUNDS": num_rounds(d)}
