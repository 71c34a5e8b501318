"""Rotations of one block in numba: the exponential and Cayley's transform of a small skew A."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg"

import math

import numpy as np
from numba import njit

from .._runtime.numba_loops import fast

TINY = 0.0625  # a norm at which eight terms of the series are exact in float64


@fast
def _product(A, B):
    """A B of small matrices."""
    C = np.zeros_like(A)
    for i in range(A.shape[0]):
        row = C[i]
        for j in range(A.shape[0]):
            a, b = A[i, j], B[j]
            for t in range(row.size):
                row[t] += a * b[t]
    return C


@fast
def _gram(A):
    """A^T A of a small matrix."""
    C = np.zeros_like(A)
    for i in range(A.shape[0]):
        row = C[i]
        for j in range(A.shape[0]):
            a, b = A[j, i], A[j]
            for t in range(row.size):
                row[t] += a * b[t]
    return C


@njit
def _combine(a, A, b, B, c, C, i):
    """A linear combination of three matrices and the identity, as loops that compile quickly."""
    out = np.empty_like(A)
    for row in range(A.shape[0]):
        for t in range(A.shape[0]):
            out[row, t] = a * A[row, t] + b * B[row, t] + c * C[row, t]
        out[row, row] += i
    return out


@njit
def _taylor_8(A):
    r"""$\sum_{n \le 8} A^n / n!$ in three products (Bader, Blanes and Casas 2019)."""
    root = math.sqrt(177.0)
    A2 = _product(A, A)
    A4 = _product(A2, _combine((1 + root) / 132, A, (1 + root) / 528, A2, 0.0, A2, 0.0))
    left = _combine(2 / 3, A2, 1.0, A4, 0.0, A4, 0.0)
    a, b, c = 11 * (root - 1) / 840, 11 * (root - 9) / 3360, (89 - root) / 2240
    right = _combine(a, A, b, A2, c, A4, (29 * root - 271) / 210)
    return _combine(1.0, A, (857 - 58 * root) / 630, A2, 1.0, _product(left, right), 1.0)


@njit
def _exponential(A, norm, bound):
    """The exponential of a skew matrix, scaled to a norm below `bound` for the series."""
    squarings = max(0, math.ceil(math.log2(max(norm, bound) / bound)))
    R = _taylor_8(_combine(0.5**squarings, A, 0.0, A, 0.0, A, 0.0))
    for _ in range(squarings):
        R = _product(R, R)
    return R


@njit
def _cayley(A):
    """(I - A/2)^-1 (I + A/2) = 2 (I - A/2)^-1 - I of a skew matrix.

    Gauss and Jordan without pivots: the symmetric part of I - A/2 is I, so no pivot is below 1.
    """
    s = A.shape[0]
    L, R = _combine(-0.5, A, 0.0, A, 0.0, A, 1.0), _combine(0.0, A, 0.0, A, 0.0, A, 2.0)
    for p in range(s):
        pivot, l, r = L[p, p], L[p], R[p]
        for t in range(s):
            l[t] /= pivot
            r[t] /= pivot
        for i in range(s):
            factor = L[i, p] if i != p else 0.0
            for t in range(s):
                L[i, t] -= factor * l[t]
                R[i, t] -= factor * r[t]
    return _combine(1.0, R, 0.0, R, 0.0, R, -1.0)


@njit
def rotate_into(S, angle, most, use_cayley, bound):
    """S becomes the rotation of the block whose products D X^T it holds."""
    A = _combine(1.0, S, -1.0, S.T, 0.0, S, 0.0)
    norm = 0.0
    for i in range(A.shape[0]):
        for j in range(i):
            norm += A[i, j] * A[i, j]
    norm = math.sqrt(norm)  # at least the spectral norm, as eigenvalues come in pairs
    if abs(angle) * norm > most:
        angle = math.copysign(most / norm, angle)
    A = _combine(angle, A, 0.0, A, 0.0, A, 0.0)
    norm *= abs(angle)
    R = _cayley(A) if use_cayley else _exponential(A, norm, bound if norm <= bound else TINY)
    if norm > bound:
        # Each squaring doubled the distance from the rotations, and each elimination added to it.
        R = _combine(1.5, R, -0.5, _product(R, _gram(R)), 0.0, R, 0.0)
    for i in range(R.shape[0]):
        for j in range(R.shape[0]):
            S[i, j] = R[i, j]
