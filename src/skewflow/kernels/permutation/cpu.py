r"""`permute` in numba, bit for bit the reference.

Every number is a uint64 that is masked to 32 bits: numba turns an operation on a uint64 and an
int64 into float64, so literals are named constants of the right type.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg, attr-defined"

import numpy as np
from numba import njit

from . import reference

_MASK = np.uint64(0xFFFFFFFF)
_GOLDEN = np.uint64(0x9E3779B9)
_MIX_1 = np.uint64(0x85EBCA6B)
_MIX_2 = np.uint64(0xC2B2AE35)
_START = np.uint64(0x243F6A88)
_1, _13, _16, _32 = (np.uint64(v) for v in (1, 13, 16, 32))


num_rounds = njit(reference.num_rounds)


@njit
def mix(x):
    """The reference's `mix` of one uint64 below 2^32."""
    x = ((x ^ (x >> _16)) * _MIX_1) & _MASK
    x = ((x ^ (x >> _13)) * _MIX_2) & _MASK
    return x ^ (x >> _16)


@njit
def make_key(seed, stream, time):
    """The reference's `make_key` of three uint64."""
    key = mix((seed & _MASK) ^ _START)
    key = mix(key ^ (seed >> _32))
    key = mix(key ^ (stream & _MASK))
    key = mix(key ^ (time & _MASK))
    return mix(key ^ (time >> _32))


@njit
def _scramble(left, right, key, rounds, high_mask, low_mask):
    """All rounds of the network on some points; one loop per half round, so that it vectorises."""
    for _ in range(rounds):
        for e in range(left.size):
            left[e] ^= mix(right[e] ^ (key & _MASK)) & high_mask
        key += _GOLDEN
        for e in range(left.size):
            right[e] ^= mix(left[e] ^ (key & _MASK)) & low_mask
        key += _GOLDEN


@njit
def permute(points, d, key):
    """The reference's `permute` of an array `points`, in place; `d` and `key` are uint64."""
    bits = _1
    while (d - _1) >> bits:
        bits += _1
    low = (bits + _1) >> _1
    low_mask, high_mask = (_1 << low) - _1, (_1 << (bits - low)) - _1
    rounds, count = num_rounds(d), points.size
    left, right = np.empty(count, np.uint64), np.empty(count, np.uint64)
    todo = np.arange(count)
    while count:
        for e in range(count):
            x = np.uint64(points[todo[e]])
            left[e], right[e] = x >> low, x & low_mask
        _scramble(left[:count], right[:count], key, rounds, high_mask, low_mask)
        outside = 0
        for e in range(count):
            x = (left[e] << low) | right[e]
            points[todo[e]] = x
            if x >= d:
                todo[outside] = todo[e]
                outside += 1
        count = outside


@njit
def fill_matching(pairs, start, d, seed, stream, step):
    """Fill `pairs` with pairs of `matching_at`, from number `start` on.

    Args:
        pairs: Output, (2, m) uint32: pair q is ``pairs[:, q]``. For odd d the unpaired row is
            paired with itself, as the last pair, number (d - 1) / 2.
        start: Number of the first pair.
        d: Number of rows.
        seed: The optimiser's seed, uint64, as are the next two.
        stream: Number of the matrix.
        step: Steps done before.
    """
    odd, n = d % 2, d - 1 + d % 2
    r = np.int64(step % np.uint64(n))
    for e in range(pairs.shape[1]):
        q = start + e + odd
        first, second = r + q, r - q
        pairs[0, e] = first - n if first >= n else first
        pairs[1, e] = second + n if second < 0 else second
        if q == 0:  # the row in the middle of the circle, paired with the last row
            pairs[1, e] = d - 1
        elif 2 * q > d:
            pairs[:, e] = r
    key = make_key(seed, stream, step // np.uint64(n))
    permute(pairs.reshape(-1), np.uint64(d), key)


@njit
def fill_order(order, start, d, seed, stream, step):
    """Fill `order` (uint32) with places of `order_at`, from number `start` on.

    The other arguments are those of `fill_matching`.
    """
    for e in range(order.size):
        order[e] = start + e
    permute(order, np.uint64(d), make_key(seed, stream, step))
