"""Simulated annealing of cuts in numba."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import math

import numpy as np

from ...kernels._runtime.numba_loops import kept


@kept
def anneal(indptr, indices, data, side, sweeps, hot, seed):
    """Visit all vertices in turn and flip them by Metropolis' rule; keeps the best sides in place.

    The temperature falls linearly from `hot` to 0. `side` holds +1 and -1. Returns how much the cut
    has grown.
    """
    n = side.shape[0]
    now = side.copy()
    gain = np.zeros(n)
    for i in range(n):
        for e in range(indptr[i], indptr[i + 1]):
            gain[i] += data[e] * now[i] * now[indices[e]]
    value, best = 0.0, 0.0
    state = np.uint64(seed) * np.uint64(2862933555777941757) + np.uint64(3037000493)
    for k in range(sweeps):
        temperature = hot * (1.0 - k / sweeps)
        for i in range(n):
            if gain[i] <= 0.0:
                state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                u = (np.float64(state >> np.uint64(11)) + 0.5) * 2.0**-53
                # A flip that changes nothing is made half of the time.
                if gain[i] < temperature * math.log(u) or (gain[i] == 0.0 and u < 0.5):
                    continue
            value += gain[i]
            now[i] = -now[i]
            gain[i] = -gain[i]
            for e in range(indptr[i], indptr[i + 1]):
                j = indices[e]
                gain[j] += 2.0 * data[e] * now[i] * now[j]
        if value > best + 1e-9:
            best = value
            side[:] = now
    return best
