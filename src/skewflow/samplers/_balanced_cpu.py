r"""One attempt of `Balanced` for h = "abs", compiled by numba: it never forms Omega.

`Balanced._attempt` computes the same from the same random numbers and is the definition of correct.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload"

import numpy as np
from numba import njit

from ..kernels._runtime.numba_loops import fast, kept

ZERO, REFUSED, REJECTED, FOUND = range(4)
"""Outcomes: Omega is zero, an h exceeds the bound, no edge is accepted, a partition is found."""


@fast
def _product(ai, bi, aj, bj):
    total = ai[0] * 0
    for t in range(ai.size):
        total += ai[t] * bj[t] - bi[t] * aj[t]
    return total


@njit
def _size(A, B, number):
    """The absolute value of the entry of the ordered pair with this number."""
    i, j = number // (len(A) - 1), number % (len(A) - 1)
    j += j >= i
    return abs(np.float64(_product(A[i], B[i], A[j], B[j])))


@njit
def _sum(A, B, numbers):
    """The sum and the maximum of the absolute values of the entries with these numbers."""
    total, largest = 0.0, 0.0
    for e in range(numbers.size):
        size = _size(A, B, numbers[e])
        total += size
        largest = max(largest, size)
    return total, largest


@njit
def _fill_order(order, rest, number, place):
    """Write the order: the accepted edge at `place`, the other rows in the order of `rest`."""
    i, j = number // (order.size - 1), number % (order.size - 1)
    j += j >= i
    order[place], order[place + 1] = min(i, j), max(i, j)
    for e in range(rest.size):
        row = rest[e] + (rest[e] >= min(i, j))
        order[e + 2 * (e >= place)] = row + (row >= max(i, j))


@njit
def _fill_blocks(blocks, A, B, order, sizes):
    """Write Omega inside the blocks; return the sum and maximum of |Omega| and the edge count."""
    total, largest, num_edges, at, start = 0.0, 0.0, 0, 0, 0
    for g in range(sizes.shape[0]):
        s = sizes[g, 0]
        for _ in range(sizes[g, 1]):
            rows = order[start : start + s]
            rows.sort()
            for a in range(s):
                blocks[at + a * s + a] = 0
                for b in range(a + 1, s):
                    w = _product(A[rows[a]], B[rows[a]], A[rows[b]], B[rows[b]])
                    blocks[at + a * s + b], blocks[at + b * s + a] = w, -w
                    total += abs(np.float64(w))
                    largest = max(largest, abs(np.float64(w)))
            num_edges += s * (s - 1) // 2
            at, start = at + s * s, start + s
    return total, largest, num_edges


@kept
def attempt(A, B, edges, thresholds, rest, place, sizes, r, limit, tiny, order, blocks):
    """One attempt: the outcome, the edges tried, the entries read, and the weight or a ratio.

    Args:
        A: Factor of Omega = A B^T - B A^T, contiguous.
        B: The other factor.
        edges: Numbers of ordered pairs: r for each of the two means, then those to try.
        thresholds: Uniform numbers in [0, 1), one for each edge to try.
        rest: A permutation of d - 2 rows.
        place: Position of the accepted edge in the order of the rows.
        sizes: Pairs of a block size and the number of such blocks (g, 2).
        r: Number of edges for each mean.
        limit: The bound on h over the mean.
        tiny: Means below this count as zero.
        order: Receives the rows in the order of the blocks (d).
        blocks: Receives Omega inside the blocks, one block after the other.

    Returns:
        The last number is the weight of the estimate if a partition was found, and the ratio of the
        largest h to the mean if an h exceeds the bound.
    """
    total, largest = _sum(A, B, edges[:r])
    mean = total / r
    bound = limit * mean
    if mean < tiny:
        return ZERO, 0, r, 0.0
    if largest > bound:
        return REFUSED, 0, r, largest / mean
    tried, accepted = 0, False
    while tried < thresholds.size and not accepted:
        size = _size(A, B, edges[2 * r + tried])
        accepted = thresholds[tried] * bound < size
        tried += 1
        if size > bound:
            return REFUSED, tried, r + tried, size / mean
    if not accepted:
        return REJECTED, tried, r + tried, 0.0
    second, largest = _sum(A, B, edges[r : 2 * r])
    _fill_order(order, rest, edges[2 * r + tried - 1], place)
    weight, inside, num_edges = _fill_blocks(blocks, A, B, order, sizes)
    read = 2 * r + tried + num_edges
    if max(largest, inside) > bound:
        return REFUSED, tried, read, max(largest, inside) / mean
    d = np.float64(order.size)
    return FOUND, tried, read, d * (d - 1) * (second / r) / (2 * weight)
