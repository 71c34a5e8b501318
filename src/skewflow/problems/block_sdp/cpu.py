"""The loops over blocks in numba; `reference` defines what they compute.

`Y` holds n points of a product of Stiefel manifolds, (n, p, r): the p rows of a block are
orthonormal. All loops run on one thread: a sweep reads what it has just written.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import math

import numpy as np

from ...kernels._runtime.numba_loops import fast, kept

_ROUNDS = 30
"""Most rounds of Jacobi rotations. They converge quadratically, so three or four suffice."""

_FULL_RANK = 1e-12
"""Smallest ratio of the singular values of a block whose polar factor is well defined."""


@kept
def sweep(indptr, indices, data, Y, omega):
    """Move each block in turn `omega` times the way to its minimiser; returns the decrease."""
    n, p, r = Y.shape
    rows = Y.reshape(n * p, r)
    G, T, N, work = np.empty((p, r)), np.empty((p, r)), np.empty((p, r)), np.empty((p + 1, p))
    decrease = 0.0
    for i in range(n):
        G[:] = 0.0
        for a in range(p):
            for e in range(indptr[i * p + a], indptr[i * p + a + 1]):
                j = indices[e]
                if j < i * p or j >= (i + 1) * p:
                    _add(G[a], data[e], rows[j])
        T[:] = G
        if not _polar(T, work):
            continue
        before = _dot(G.ravel(), Y[i].ravel())
        N[:] = 0.0
        for a in range(p):
            _add(N[a], 1.0 - omega, Y[i, a])
            _add(N[a], -omega, T[a])
        after = math.inf
        if _polar(N, work):
            after = _dot(G.ravel(), N.ravel())
        if not after <= before:
            N[:] = -T
            after = _dot(G.ravel(), N.ravel())
        Y[i] = N
        decrease += 2.0 * (before - after)
    return decrease


@kept
def multipliers(G, Y, out):
    """Write the symmetric part of G_i Y_iᵀ into `out`, (n, p, p)."""
    n = Y.shape[0]
    for i in range(n):
        _symmetric_product(G[i], Y[i], out[i])


@kept
def to_tangent(V, Y):
    """Project `V` to the tangent space at `Y`, in place."""
    n, p, _ = Y.shape
    S = np.empty((p, p))
    for i in range(n):
        _symmetric_product(V[i], Y[i], S)
        for a in range(p):
            for b in range(p):
                _add(V[i, a], -S[a, b], Y[i, b])


@kept
def add_blocks(D, V, out):
    """Add D_i V_i to `out`, in place."""
    n, p, _ = V.shape
    for i in range(n):
        for a in range(p):
            for b in range(p):
                _add(out[i, a], D[i, a, b], V[i, b])


@kept
def retract(V):
    """Replace each block by its polar factor, in place."""
    n, p, _ = V.shape
    work = np.empty((p + 1, p))
    for i in range(n):
        _polar(V[i], work)


@fast
def _dot(x, y):
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k] * y[k]
    return total


@fast
def _add(x, c, y):
    for k in range(x.shape[0]):
        x[k] += c * y[k]


@fast
def _symmetric_product(V, Y, out):
    for a in range(Y.shape[0]):
        for b in range(a + 1):
            out[a, b] = 0.5 * (_dot(V[a], Y[b]) + _dot(V[b], Y[a]))
            out[b, a] = out[a, b]


@fast
def _polar(A, work):
    """Polar factor of the rows of `A` by one-sided Jacobi rotations, in place.

    Returns False, and leaves `A` undefined, if its rows are linearly dependent.
    """
    p, r = A.shape
    J, column = work[:p], work[p]
    for a in range(p):
        for b in range(p):
            J[a, b] = 1.0 if a == b else 0.0
    for _ in range(_ROUNDS if p > 1 else 0):
        rotated = False
        for a in range(p - 1):
            for b in range(a + 1, p):
                x, y, z = _dot(A[a], A[a]), _dot(A[b], A[b]), _dot(A[a], A[b])
                if abs(z) > 1e-15 * math.sqrt(x) * math.sqrt(y):  # x * y may overflow
                    rotated = True
                    t = 0.5 * math.atan2(2.0 * z, x - y)
                    c, s = math.cos(t), math.sin(t)
                    _turn(A[a], A[b], c, s)
                    _turn(J[a], J[b], c, s)
        if not rotated:
            break
    most, least = 0.0, math.inf
    for a in range(p):
        norm = math.sqrt(_dot(A[a], A[a]))
        most, least = max(most, norm), min(least, norm)
        for k in range(r):
            A[a, k] /= norm if norm > 0.0 else 1.0
    for k in range(r if p > 1 else 0):  # the polar factor is Jᵀ times the normalised rows
        for a in range(p):
            column[a] = 0.0
            for b in range(p):
                column[a] += J[b, a] * A[b, k]
        A[:, k] = column
    return least > _FULL_RANK * most


@fast
def _turn(x, y, c, s):
    for k in range(x.shape[0]):
        u, v = x[k], y[k]
        x[k], y[k] = c * u + s * v, c * v - s * u
