"""Tabu search for cuts in numba."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from ...kernels._runtime.numba_loops import kept


@kept
def improve(indptr, indices, data, side, moves, seed):
    """Flip one vertex a move, the best that has not moved lately; keeps the best sides in place.

    A vertex rests for 7 to 16 moves, or n / 4 in small graphs, unless it gives a new best cut.
    `side` holds +1 and -1. Returns how much the cut has grown.
    """
    n = side.shape[0]
    now = side.copy()
    gain = np.zeros(n)
    for i in range(n):
        for e in range(indptr[i], indptr[i + 1]):
            gain[i] += data[e] * now[i] * now[indices[e]]
    rest = np.zeros(n, dtype=np.int64)
    value, best = 0.0, 0.0
    state = np.uint64(seed) * np.uint64(2862933555777941757) + np.uint64(3037000493)
    for move in range(moves):
        chosen, most = -1, -np.inf
        for i in range(n):
            if gain[i] > most and (rest[i] <= move or value + gain[i] > best + 1e-9):
                chosen, most = i, gain[i]
        if chosen < 0:
            continue
        if most <= 0.0 and value > best + 1e-9:
            best = value
            side[:] = now
        value += most
        now[chosen] = -now[chosen]
        gain[chosen] = -most
        for e in range(indptr[chosen], indptr[chosen + 1]):
            j = indices[e]
            gain[j] += 2.0 * data[e] * now[chosen] * now[j]
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        pause = min(n // 4, 7 + int(state >> np.uint64(33)) % 10)
        rest[chosen] = move + 1 + pause
    if value > best + 1e-9:
        best = value
        side[:] = now
    return best
