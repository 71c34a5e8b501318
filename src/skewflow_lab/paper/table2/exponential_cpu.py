"""Small matrix exponentials in numba, in memory that the caller owns, for loops of many steps."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import math

import numpy as np
from numba import njit

from skewflow.kernels._runtime.numba_loops import fast

LARGEST_DEGREE = 7
"""Largest degree at which the series is applied to the point term by term."""

TRUNCATION = 1e-21
"""Largest truncation error of a step; over five million steps the sum is below one rounding."""

_INVERSE_FACTORIALS = np.array([1 / math.factorial(n) for n in range(17)])


@fast
def multiply(out, A, B):
    """`out` becomes A B; it must not share memory with either."""
    d = A.shape[0]
    for i in range(d):
        row = out[i]
        row[:] = 0.0
        for k in range(0, d - 3, 4):  # four rows at once: a row of `out` stays in registers longer
            a0, a1, a2, a3 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3]
            b0, b1, b2, b3 = B[k], B[k + 1], B[k + 2], B[k + 3]
            for j in range(d):
                row[j] += a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j]
        for k in range(d - d % 4, d):
            a, b = A[i, k], B[k]
            for j in range(d):
                row[j] += a * b[j]


@njit
def apply_exponential(A, Y, work):
    """Y becomes exp(A) Y, to 1e-21 of its norm plus rounding.

    Below a norm of about 0.01 the series acts on Y by Horner's rule, smallest terms first; above
    it the exponential is a polynomial of degree 16 at norm 1/2, squared.

    Args:
        A: Skew matrix (d, d); overwritten.
        Y: Point (d, k).
        work: At least five matrices (d, d) of scratch memory.
    """
    norm = _frobenius(A) / math.sqrt(2.0)  # bounds the spectral norm of a skew matrix
    degree, left_out = 0, norm
    while left_out > TRUNCATION and degree < LARGEST_DEGREE:
        degree += 1
        left_out *= norm / (degree + 1)
    if left_out <= TRUNCATION:
        _apply_series(A, Y, degree, work[0], work[1])
        return
    E = _scaled_exponential(A, norm, work)
    multiply(work[2], E, Y)
    Y[:] = work[2]


@njit
def apply_taylor(A, Y, terms, work):
    """Y becomes (sum of A^n / n! for n <= terms) Y: the plain series, without scaling.

    Terms after one below `TRUNCATION` are omitted; large ones, infinities and NaN are all summed.

    Args:
        A: Skew matrix (d, d).
        Y: Point (d, k).
        terms: The highest power, at least 1.
        work: At least three matrices (d, d) of scratch memory.
    """
    total, term, product = work[0], work[1], work[2]
    term[:] = A  # I A
    total[:] = A
    for i in range(A.shape[0]):
        total[i, i] += 1.0
    for n in range(2, terms + 1):
        multiply(product, term, A)
        _add_term(total, term, product, n)
        if _frobenius(term) < TRUNCATION:  # false for NaN
            break
    multiply(product, total, Y)
    Y[:] = product


@fast
def _add_term(total, term, product, n):
    for i in range(total.shape[0]):
        for j in range(total.shape[1]):
            term[i, j] = product[i, j] / n
            total[i, j] += term[i, j]


@fast
def _frobenius(A):
    total = 0.0
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            total += A[i, j] * A[i, j]
    return math.sqrt(total)


@fast
def _apply_series(A, Y, degree, Z, product):
    Z[:] = Y
    for n in range(degree, 0, -1):
        multiply(product, A, Z)
        scale = 1.0 / n
        for i in range(Y.shape[0]):
            for j in range(Y.shape[1]):
                Z[i, j] = Y[i, j] + scale * product[i, j]
    Y[:] = Z


@fast
def _scaled_exponential(A, norm, work):
    """exp(A) in one of the matrices of `work`: the six products of `geometry.expm`."""
    squarings = 0
    while norm > 0.5:
        norm *= 0.5
        squarings += 1
    A *= 0.5**squarings
    A2, A3, A4, E, product = work[0], work[1], work[2], work[3], work[4]
    multiply(A2, A, A)
    multiply(A3, A2, A)
    multiply(A4, A2, A2)
    d = A.shape[0]
    for i in range(d):
        for j in range(d):
            E[i, j] = _INVERSE_FACTORIALS[16] * A4[i, j]
    _add_cubic(E, 12, A, A2, A3)
    for n in (8, 4, 0):
        multiply(product, E, A4)
        E, product = product, E
        _add_cubic(E, n, A, A2, A3)
    for _ in range(squarings):
        multiply(product, E, E)
        E, product = product, E
    return E


@fast
def _add_cubic(E, n, A, A2, A3):
    """Add the terms n to n + 3 of the series, over A^n."""
    a0, a1, a2, a3 = _INVERSE_FACTORIALS[n : n + 4]
    for i in range(E.shape[0]):
        for j in range(E.shape[1]):
            E[i, j] += a1 * A[i, j] + a2 * A2[i, j] + a3 * A3[i, j]
        E[i, i] += a0
