"""Exchange search for the quadratic assignment problem in numba."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from ...kernels._runtime.numba_loops import fast, kept

PATIENCE = 10
"""Moves for each row without a new best permutation, after which the search restarts near it."""

REFRESH = 4096
"""Exchanges after which all gains are computed again, before rounding errors add up."""


@fast
def next_random(state):
    """The next state of a linear congruential generator; its upper bits are random."""
    return state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)


@fast
def below(state, n):
    """A random number from 0 to n - 1."""
    return int(state >> np.uint64(33)) % n


@fast
def cost(A, P, L, p):
    """The sum of A * P, where P = B[p][:, p], and of L[i, p[i]]."""
    total = 0.0
    for i in range(A.shape[0]):
        for j in range(A.shape[0]):
            total += A[i, j] * P[i, j]
        total += L[i, p[i]]
    return total


@fast
def change(A, At, P, Pt, L, p, u, v):
    """What exchanging u and v adds to the cost; At and Pt are transposes. O(n)."""
    total = 0.0
    for k in range(A.shape[0]):
        total += (A[u, k] - A[v, k]) * (P[v, k] - P[u, k])
        total += (At[u, k] - At[v, k]) * (Pt[v, k] - Pt[u, k])
    for k in (u, v):
        total -= (A[u, k] - A[v, k]) * (P[v, k] - P[u, k])
        total -= (At[u, k] - At[v, k]) * (Pt[v, k] - Pt[u, k])
    total += (A[u, u] - A[v, v]) * (P[v, v] - P[u, u])
    total += (A[u, v] - A[v, u]) * (P[v, u] - P[u, v])
    return total + L[u, p[v]] + L[v, p[u]] - L[u, p[u]] - L[v, p[v]]


@fast
def all_changes(delta, A, At, P, Pt, L, p):
    """`change` of every pair u < v. O(n^3)."""
    for u in range(A.shape[0]):
        for v in range(u + 1, A.shape[0]):
            delta[u, v] = change(A, At, P, Pt, L, p, u, v)


@fast
def update_changes(delta, A, At, P, Pt, L, p, r, s, scratch):
    """`change` of every pair, after r and s were exchanged: O(1) for pairs without r and s.

    Those grow by (x_u - x_v)(y_u - y_v) + (z_u - z_v)(w_u - w_v) (Taillard 1991, Eq. 5).
    """
    n = A.shape[0]
    x, y, z, w = scratch[0], scratch[1], scratch[2], scratch[3]
    for u in range(n):
        x[u] = A[r, u] - A[s, u]
        y[u] = P[s, u] - P[r, u]
        z[u] = At[r, u] - At[s, u]
        w[u] = Pt[s, u] - Pt[r, u]
    for u in range(n):
        xu, yu, zu, wu = x[u], y[u], z[u], w[u]
        row = delta[u]
        for v in range(n):
            row[v] += (xu - x[v]) * (yu - y[v]) + (zu - z[v]) * (wu - w[v])
    for u in range(n):
        if u != r:
            delta[min(u, r), max(u, r)] = change(A, At, P, Pt, L, p, u, r)
        if u != s:
            delta[min(u, s), max(u, s)] = change(A, At, P, Pt, L, p, u, s)


@fast
def swap(P, r, s):
    """Exchange two rows, and the same two columns."""
    for k in range(P.shape[0]):
        P[r, k], P[s, k] = P[s, k], P[r, k]
    for k in range(P.shape[0]):
        P[k, r], P[k, s] = P[k, s], P[k, r]


@fast
def fill(P, Pt, B, p):
    """P = B[p][:, p], and its transpose."""
    for i in range(p.shape[0]):
        for j in range(p.shape[0]):
            P[i, j] = Pt[j, i] = B[p[i], p[j]]


@kept
def exchange(A, B, L, perm, moves, tolerance, seed):
    r"""Lower $\sum_{ij} A_{ij} B_{p_i p_j} + \sum_i L_{i p_i}$ by exchanging two of p at a time.

    Steepest descent to a 2-exchange optimum; then, for `moves` exchanges, robust tabu search
    (Taillard 1991) that restarts from a perturbed best permutation when it has found nothing new
    for a while (Misevicius 2004). `perm` becomes the best permutation found.
    """
    n = perm.shape[0]
    if n < 2:
        return
    now = perm.copy()
    P, Pt, At = np.empty((n, n)), np.empty((n, n)), A.T.copy()
    delta, scratch = np.zeros((n, n)), np.empty((4, n))
    last = np.full((n, n), -2 * n - 10, dtype=np.int64)
    state = next_random(np.uint64(seed) * np.uint64(2862933555777941757) + np.uint64(3037000493))
    move, found, since, value, best = 0, 0, REFRESH, 0.0, np.inf
    descending = True
    while True:
        if not descending and move - found >= PATIENCE * n:
            now[:] = perm
            found, since = move, REFRESH
            state = next_random(state)
            for _ in range(3 + below(state, n // 2 + 1)):
                state = next_random(state)
                u = below(state, n)
                state = next_random(state)
                v = below(state, n)
                now[u], now[v] = now[v], now[u]
        if since >= REFRESH:
            fill(P, Pt, B, now)
            all_changes(delta, A, At, P, Pt, L, now)
            value, since = cost(A, P, L, now), 0
        r, s, least = -1, -1, np.inf
        for u in range(n):
            row = delta[u]
            for v in range(u + 1, n):
                gain = row[v]
                if gain >= least:
                    continue
                if not descending and value + gain >= best - tolerance:
                    state = next_random(state)
                    rest = 9 * n // 10 + below(state, n // 5 + 1)
                    if move - last[u, now[v]] < rest and move - last[v, now[u]] < rest:
                        continue
                r, s, least = u, v, gain
        if descending and least >= -tolerance:
            descending = False
            best = value
            perm[:] = now
        if not descending:
            move += 1
            if move > moves:
                return
        if r < 0:
            continue
        last[r, now[r]] = last[s, now[s]] = move
        now[r], now[s] = now[s], now[r]
        value += least
        swap(P, r, s)
        swap(Pt, r, s)
        update_changes(delta, A, At, P, Pt, L, now, r, s, scratch)
        since += 1
        if not descending and value < best - tolerance:
            best, found = value, move
            perm[:] = now
