r"""The loops of the sorting flow in numba: all steps of all sequences in one call.

They work on $Y = X^\top$, whose rows are the columns that the flow mixes. There the flow is
$Y' = (NH - HN)\,Y$ with $H = Y Q Y^\top$: the entry (i, j) of the generator is
$(n_i - n_j) \sum_k q_k Y_{ik} Y_{jk}$ and reads two rows.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload"

import math

import numpy as np
from numba import njit, prange

from skewflow.kernels._runtime.numba_loops import Loops, fast

from .exponential_cpu import apply_exponential, apply_taylor, multiply


@Loops
def run_matchings(Y, q, n, angle, matchings, members):
    """Take steps that turn the pairs of a matching, in place.

    Args:
        Y: Points (b, d, d), transposed.
        q: Sequences (b, d).
        n: Diagonal of N (d).
        angle: Step size times the weight of a matching.
        matchings: The family (r, m, 2).
        members: Number of the matching of each step (num_steps, b).
    """
    for b in prange(Y.shape[0]):
        X, values = Y[b], q[b]
        for step in range(members.shape[0]):
            pairs = matchings[members[step, b]]
            for e in range(pairs.shape[0]):
                i, j = pairs[e, 0], pairs[e, 1]
                _turn(X[i], X[j], angle * (n[i] - n[j]) * _weighted_product(X[i], X[j], values))


@Loops
def run_exponential(Y, q, n, eta, num_steps):
    """Take steps with the exponential of the whole generator, in place; arguments as above."""
    for b in prange(Y.shape[0]):
        A, work = np.empty(Y.shape[1:]), np.empty((5, *Y.shape[1:]))
        for _ in range(num_steps):
            _fill_generator(A, Y[b], q[b], n, eta, work)
            apply_exponential(A, Y[b], work)


@Loops
def run_taylor(Y, q, n, eta, first_step, num_steps, terms, diverged_at):
    """Take steps with a truncated series, in place, until a point is no longer finite.

    `diverged_at` (b) receives the number of the step after which a point is not finite. A point
    whose number is not negative has diverged earlier and does not change.
    """
    for b in prange(Y.shape[0]):
        A, work = np.empty(Y.shape[1:]), np.empty((5, *Y.shape[1:]))
        for step in range(num_steps):
            if diverged_at[b] >= 0:
                break
            _fill_generator(A, Y[b], q[b], n, eta, work)
            apply_taylor(A, Y[b], terms, work)
            if not _is_finite(Y[b]):
                diverged_at[b] = first_step + step


@fast
def _weighted_product(u, v, q):
    total = 0.0
    for k in range(q.size):
        total += q[k] * u[k] * v[k]
    return total


@fast
def _rotate(u, v, c, s):
    for k in range(u.size):
        x, y = u[k], v[k]
        u[k] = c * x + s * y
        v[k] = c * y - s * x


@njit
def _turn(u, v, theta):
    _rotate(u, v, math.cos(theta), math.sin(theta))


@fast
def _fill_generator(A, Y, q, n, eta, work):
    """A becomes eta (N H - H N): skew to the bit, because H is read from one triangle."""
    scaled, H = work[0], work[1]
    d = Y.shape[0]
    for i in range(d):
        for k in range(d):
            scaled[k, i] = q[k] * Y[i, k]
    multiply(H, Y, scaled)
    for i in range(d):
        A[i, i] = 0.0
        for j in range(i):
            A[i, j] = eta * (n[i] - n[j]) * H[i, j]
            A[j, i] = -A[i, j]


@njit
def _is_finite(Y):
    for i in range(Y.shape[0]):
        for j in range(Y.shape[1]):
            if not math.isfinite(Y[i, j]):
                return False
    return True
