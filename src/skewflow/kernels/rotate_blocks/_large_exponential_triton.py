r"""The exponential of a skew A of more than 64 rows, in memory, and its series applied to rows.

A program has room for products of 64 x 64 tiles. So A has two parts, 64 rows and up to TAIL more,
and is read from memory, tile by tile.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

HEAD = tl.constexpr(64)
STRIDE = tl.constexpr(128)
COLUMNS = tl.constexpr(32)
"""Rows of the first part, length of a row of A in memory, columns formed at a time."""

LONGER = tl.constexpr(2.0**-34)
"""Largest relative change of a length by a rotation: a thousandth of float32's rounding, as these
changes add up."""


@triton.jit
def load_tile(A_ptr, rows, cols):
    return tl.load(A_ptr + rows[:, None] * STRIDE + cols[None, :])


@triton.jit
def store_tile(A_ptr, rows, cols, A):
    tl.store(A_ptr + rows[:, None] * STRIDE + cols[None, :], A)


@triton.jit
def _unmoved(A_ptr, number):
    """The pointer, in a form that the compiler does not see through; `number` is at least 0.

    Otherwise it would keep all tiles read in a loop in shared memory: 160 KB, more than many GPUs
    have.
    """
    return A_ptr + tl.minimum(number, 0)


@triton.jit
def _multiply(A_ptr, V, W, TAIL: tl.constexpr, TRANSPOSED: tl.constexpr = False):
    """The product of A, or its transpose, with (V, W), in two parts; A is in memory."""
    head, tail = tl.arange(0, HEAD), tl.arange(0, TAIL) + HEAD
    if TRANSPOSED:
        P = tl.dot(tl.trans(load_tile(A_ptr, head, head)), V, input_precision="tf32x3")
        P = tl.dot(tl.trans(load_tile(A_ptr, tail, head)), W, P, input_precision="tf32x3")
        Q = tl.dot(tl.trans(load_tile(A_ptr, head, tail)), V, input_precision="tf32x3")
        Q = tl.dot(tl.trans(load_tile(A_ptr, tail, tail)), W, Q, input_precision="tf32x3")
    else:
        P = tl.dot(load_tile(A_ptr, head, head), V, input_precision="tf32x3")
        P = tl.dot(load_tile(A_ptr, head, tail), W, P, input_precision="tf32x3")
        Q = tl.dot(load_tile(A_ptr, tail, head), V, input_precision="tf32x3")
        Q = tl.dot(load_tile(A_ptr, tail, tail), W, Q, input_precision="tf32x3")
    return P, Q


@triton.jit
def series(
    A_ptr, factor, C, D, terms, TAIL: tl.constexpr, LAST: tl.constexpr, RELOAD: tl.constexpr
):
    r"""$C + A/1\,(C + A/2\,(C + \dots))$ down from A / terms: $\exp(A)\,C$, in two parts (C, D).

    All terms except C have the factor A, so the rounding of a small rotation is small. If the sum
    ends at A / LAST = A / 2, and C has columns of A, the result has the columns of $\exp(A) - I$.
    The A of the formula is `factor` times that in memory.
    """
    V, W = C, D
    for done in range(0, terms + 1 - LAST):
        P, Q = _multiply(_unmoved(A_ptr, done) if RELOAD else A_ptr, V, W, TAIL)
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
def exponential_in_memory(A_ptr, spare_ptr, norm, TAIL: tl.constexpr):
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
        C, D = factor * load_tile(A_ptr, head, cols), factor * load_tile(A_ptr, tail, cols)
        C, D = series(A_ptr, factor, C, D, terms, TAIL, 2, True)
        store_tile(spare_ptr, head, cols, C)
        store_tile(spare_ptr, tail, cols, D)
    for _ in range(0, squarings):
        _square(spare_ptr, A_ptr, TAIL)
        _polish(A_ptr, spare_ptr, TAIL)
    tl.debug_barrier()
    for first in range(0, HEAD + TAIL, COLUMNS):
        cols = first + tl.arange(0, COLUMNS)
        store_tile(A_ptr, head, cols, load_tile(spare_ptr, head, cols))
        store_tile(A_ptr, tail, cols, load_tile(spare_ptr, tail, cols))


@triton.jit
def _square(E_ptr, to_ptr, TAIL: tl.constexpr):
    """(I + E)^2 - I = 2 E + E^2, from one buffer to the other."""
    head, tail = tl.arange(0, HEAD), tl.arange(0, TAIL) + HEAD
    tl.debug_barrier()
    for first in range(0, HEAD + TAIL, COLUMNS):
        cols = first + tl.arange(0, COLUMNS)
        C, D = load_tile(E_ptr, head, cols), load_tile(E_ptr, tail, cols)
        P, Q = _multiply(_unmoved(E_ptr, first), C, D, TAIL)
        store_tile(to_ptr, head, cols, 2 * C + P)
        store_tile(to_ptr, tail, cols, 2 * D + Q)


@triton.jit
def _polish(E_ptr, to_ptr, TAIL: tl.constexpr):
    """The step of `_exponential_triton.polish`, from one buffer to the other."""
    head, tail = tl.arange(0, HEAD), tl.arange(0, TAIL) + HEAD
    tl.debug_barrier()
    for first in range(0, HEAD + TAIL, COLUMNS):
        cols = first + tl.arange(0, COLUMNS)
        C, D = load_tile(E_ptr, head, cols), load_tile(E_ptr, tail, cols)
        F, H = _multiply(_unmoved(E_ptr, first), C, D, TAIL, TRANSPOSED=True)
        F += C + tl.trans(load_tile(E_ptr, cols, head))
        H += D + tl.trans(load_tile(E_ptr, cols, tail))
        P, Q = _multiply(_unmoved(E_ptr, first), F, H, TAIL)
        store_tile(to_ptr, head, cols, C - 0.5 * (F + P))
        store_tile(to_ptr, tail, cols, D - 0.5 * (H + Q))
