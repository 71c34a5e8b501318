r"""`permute` in numba, bit for bit the reference, and what else the loops of both steps share.

Every number is a uint64 that is masked to 32 bits: numba turns an operation on a uint64 and an
int64 into float64, so literals are named constants of the right type.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg, attr-defined"

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from ...tournaments.partitions import edge_probability
from .._runtime.numba_loops import fast
from ..update import Update
from . import reference

CACHE_LINE = 64
PREFETCH_UP_TO = 8192
"""Longer rows would push one another out of the second-level cache."""

LINE = 16
"""Entries gathered at once where they are far apart; the width of a tile is a multiple of it."""

LARGEST_TURN = np.finfo(np.float64).max / 2
"""Largest angle: cosine and sine of any finite one are exact, those of infinity are NaN."""

UNBOUNDED = 2**48
"""More entries than any tensor has."""

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
    """The pairs number `start` and on of `matching_at`, as many as `pairs` holds.

    Args:
        pairs: Where they go, (2, m) uint32: pair q is ``pairs[:, q]``. The row that is left over
            when d is odd is the last pair, number (d - 1) / 2, with itself.
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
    """The places number `start` and on of `order_at`, as many as `order` (uint32) holds.

    The other arguments are those of `fill_matching`.
    """
    for e in range(order.size):
        order[e] = start + e
    permute(order, np.uint64(d), make_key(seed, stream, step))


def as_word(value: int) -> np.uint64:
    """The two's complement of an int64, which the reference's shifts and masks see."""
    return np.uint64(value & 0xFFFFFFFFFFFFFFFF)


class Plan(NamedTuple):
    r"""The numbers of a step for the compiled loops, reals in the dtype of the point.

    $M \leftarrow \mu M + \sigma G$ and $D = a G + b M$; a plane turns by `angle` times its entry of
    $D X^\top - X D^\top$, or by Cayley's angle.
    """

    seed: np.uint64
    stream: np.uint64
    use_momentum: bool
    cayley: bool
    angle: float
    mu: np.floating[Any]
    sigma: np.floating[Any]
    a: np.floating[Any]
    b: np.floating[Any]


@lru_cache(maxsize=1024)
def make_plan(
    update: Update, use_momentum: bool, dtype: torch.dtype, d: int, block_size: int
) -> Plan:
    """The plan of an update; kept, because its Python costs as much as turning many pairs."""
    as_real = np.float32 if dtype == torch.float32 else np.float64
    sigma = -1.0 if update.maximize else 1.0
    a, b = (sigma, update.momentum) if update.nesterov else (0.0, 1.0)
    return Plan(
        seed=as_word(update.seed),
        stream=as_word(update.stream),
        use_momentum=use_momentum,
        cayley=update.retraction == "cayley",
        # Without momentum the loops take G itself for D, so its sign goes into the angle.
        angle=min(update.lr / float(edge_probability(d, block_size)), LARGEST_TURN)
        * (-1 if use_momentum else -sigma),
        mu=as_real(update.momentum),
        sigma=as_real(sigma),
        a=as_real(a),
        b=as_real(b),
    )


def as_array(moments: Tensor | None) -> Any:
    """Second moments of the rows for the kernels; an empty array where there are none."""
    return np.empty((0, 0)) if moments is None else moments.to(torch.float64).numpy()


@njit
def divisor(w, b, i, j):
    """What the entry (i, j) of matrix b is divided by: 1, or the root mean square of two rows."""
    if w.size == 0:
        return 1.0
    return math.sqrt((w[b, i] + w[b, j]) / 2)


def addresses(*tensors: Tensor | None) -> tuple[int, ...]:
    """Where the first entries lie; 0 for None."""
    return tuple(0 if A is None else A.data_ptr() for A in tensors)


def strides(*tensors: Tensor | None) -> tuple[tuple[int, ...], ...]:
    """The strides in entries; zeros for None."""
    return tuple((0, 0, 0) if A is None else A.stride() for A in tensors)


def mark_written(*tensors: Tensor | None) -> None:
    """Tell autograd, which does not see numba write, that these have changed."""
    for A in tensors:
        if A is not None and not A.is_inference():
            torch.autograd.graph.increment_version(A)


@intrinsic
def _pointer(typing_context, address, like):
    """The integer `address` as a pointer to numbers of the type of `like`."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.intp, like), codegen


@njit
def memories(addresses, plan):
    """Vectors of everything from each address on; strides say where in them the tensors lie.

    Not by ``Tensor.numpy()``, which takes ten microseconds for three tensors, and more in a cold
    cache.
    """
    x, g, m = addresses
    return (
        carray(_pointer(x, plan.mu), UNBOUNDED),
        carray(_pointer(g, plan.mu), UNBOUNDED),
        carray(_pointer(m, plan.mu), UNBOUNDED),
    )


@intrinsic
def _prefetch_line(typing_context, array, index):
    """Ask for the cache line of ``array[index]``, for the second level; never faults."""

    def codegen(context, builder, signature, args):
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [address, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@njit
def prefetch(array, start, size):
    """Ask for `size` entries from `start` on."""
    for t in range(start, start + size, CACHE_LINE // array.itemsize):
        _prefetch_line(array, t)


@fast
def advance(m, g, plan):
    """The new momentum of one row, in place."""
    mu, sigma = plan.mu, plan.sigma
    for t in range(m.size):
        m[t] = mu * m[t] + sigma * g[t]


@fast
def fill_direction(out, g, m, plan):
    """The direction of one row, from its new momentum."""
    a, b = plan.a, plan.b
    for t in range(m.size):
        out[t] = a * g[t] + b * m[t]


@njit
def _copy(out, x):
    for t in range(x.size):
        out[t] = x[t]


@njit
def pick(out, x, offsets):
    """The entries of `x` at the offsets."""
    for e in range(offsets.size):
        out[e] = x[offsets[e]]


@njit
def _put(x, values, offsets):
    for e in range(offsets.size):
        x[offsets[e]] = values[e]


@njit
def gather(tile, w, slots, offsets, x, stride, buffer):
    """Copy the entries ``x[offsets[e] + t * stride]`` to ``tile[slots[e], t]`` for t < w.

    Far apart, they are picked along the lines of memory first, then turned in a small buffer:
    reading down a column would use one entry of each cache line that is loaded.
    """
    if stride == 1:
        for e in range(slots.size):
            prefetch(x, offsets[min(e + 2, slots.size - 1)], w)
            _copy(tile[slots[e]], x[offsets[e] :][:w])
        return
    base = last = offsets[0]
    for offset in offsets:
        base, last = min(base, offset), max(last, offset)
    span = min(last - base + 1, PREFETCH_UP_TO)
    for start in range(0, w, LINE):
        for t in range(start, min(start + LINE, w)):
            prefetch(x, base + (t + 1) * stride, span)
            pick(buffer[t - start], x[t * stride :], offsets)
        for e in range(slots.size):
            row = tile[slots[e], start:]
            for t in range(LINE):  # all of them: a fixed number is faster, and tiles have the room
                row[t] = buffer[t, e]


@njit
def scatter(tile, w, slots, offsets, x, stride, buffer):
    """Copy a tile back: the inverse of `gather`."""
    if stride == 1:
        for e in range(slots.size):
            _copy(x[offsets[e] :], tile[slots[e], :w])
        return
    for start in range(0, w, LINE):
        for e in range(slots.size):
            row = tile[slots[e], start:]
            for t in range(LINE):
                buffer[t, e] = row[t]
        for t in range(start, min(start + LINE, w)):
            _put(x[t * stride :], buffer[t - start], offsets)
