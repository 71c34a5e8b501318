"""The memory of tensors in compiled loops: prefetches, and copies between rows and tiles."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg, attr-defined"

from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

CACHE_LINE = 64
PREFETCH_UP_TO = 8192
"""Longest row, in entries, that is prefetched; longer rows evict one another from the L2 cache."""

LINE = 16
"""Number of distant entries that are copied together; tile widths are multiples of it."""

UNBOUNDED = 2**48
"""Length of the arrays that stand for raw memory: more entries than any tensor has."""


@intrinsic
def _pointer(typing_context, address, like):
    """The integer `address` as a pointer to numbers of the type of `like`."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.intp, like), codegen


@njit
def memories(addresses, plan):
    """One-dimensional arrays that begin at each address; strides locate the tensors in them.

    ``Tensor.numpy()`` would take ten microseconds for three tensors, and more in a cold cache.
    """
    x, g, m = addresses
    return (
        carray(_pointer(x, plan.mu), UNBOUNDED),
        carray(_pointer(g, plan.mu), UNBOUNDED),
        carray(_pointer(m, plan.mu), UNBOUNDED),
    )


@intrinsic
def _prefetch_line(typing_context, array, index):
    """Prefetch the cache line of ``array[index]`` into the second level; never faults."""

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
    """Prefetch `size` entries from `start` on."""
    for t in range(start, start + size, CACHE_LINE // array.itemsize):
        _prefetch_line(array, t)


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

    Distant entries are read along the lines of memory first and transposed in a small buffer:
    reading down a column would use only one entry of each cache line that is loaded.
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
            for t in range(LINE):  # all: a fixed number is faster, and tiles have room
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
