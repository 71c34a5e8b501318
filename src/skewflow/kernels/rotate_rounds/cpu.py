"""`rotate_rounds` in numba: all rounds on a few vectors at a time, while these are in the cache.

Vectors are columns here, so that the rotation of two rows runs along contiguous memory.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from jaxtyping import Float, Int
from numba import prange
from torch import Tensor

from .._runtime.numba_loops import Loops, fast

TILE = 64
"""Columns that go through all rounds together."""
CHUNKS = 16
"""Most parts of the batch with separate sums for the gradient of the angles. The number does not
depend on the number of threads, so the result does not, either."""


def rotate_rounds_(
    X: Float[Tensor, "d b"],
    pairs: Int[Tensor, "n m 2"],
    c: Float[Tensor, "n m"],
    s: Float[Tensor, "n m"],
) -> None:
    """Turn the contiguous columns of `X` in place, by angles with these cosines and sines."""
    tiles = -(-X.shape[1] // TILE)
    work = X.numel() * len(pairs)
    _turn_rounds(work, X.numpy(), pairs.numpy(), c.numpy(), s.numpy(), tiles)


def rotate_rounds_back_(
    G: Float[Tensor, "d b"],
    Y: Float[Tensor, "d b"],
    pairs: Int[Tensor, "n m 2"],
    c: Float[Tensor, "n m"],
    s: Float[Tensor, "n m"],
) -> Float[Tensor, "n m"]:
    """Turn gradients and results back, in place; returns the gradient of the angles."""
    tiles = -(-Y.shape[1] // TILE)
    sums = Y.new_zeros(min(CHUNKS, tiles), *c.shape)
    work = 2 * Y.numel() * len(pairs)
    _turn_back(work, G.numpy(), Y.numpy(), pairs.numpy(), c.numpy(), s.numpy(), sums.numpy(), tiles)
    return sums.sum(0)


@fast
def _turn(xi, xj, c, s):
    for t in range(xi.size):
        u, v = xi[t], xj[t]
        xi[t] = c * u + s * v
        xj[t] = c * v - s * u


@fast
def _entry(gi, gj, yi, yj):
    total = gi[0] * 0
    for t in range(gi.size):
        total += gi[t] * yj[t] - gj[t] * yi[t]
    return total


@Loops
def _turn_rounds(x, pairs, c, s, tiles):
    n, m = c.shape
    width = x.shape[1]
    for tile in prange(tiles):
        start = tile * TILE
        end = min(start + TILE, width)
        for r in range(n):
            for e in range(m):
                i, j = pairs[r, e, 0], pairs[r, e, 1]
                _turn(x[i, start:end], x[j, start:end], c[r, e], s[r, e])


@Loops
def _turn_back(g, y, pairs, c, s, sums, tiles):
    n, m = c.shape
    width, chunks = y.shape[1], sums.shape[0]
    for chunk in prange(chunks):
        for tile in range(chunk, tiles, chunks):
            start = tile * TILE
            end = min(start + TILE, width)
            for r in range(n - 1, -1, -1):
                for e in range(m):
                    i, j = pairs[r, e, 0], pairs[r, e, 1]
                    gi, gj = g[i, start:end], g[j, start:end]
                    yi, yj = y[i, start:end], y[j, start:end]
                    sums[chunk, r, e] += _entry(gi, gj, yi, yj)
                    _turn(gi, gj, c[r, e], -s[r, e])
                    _turn(yi, yj, c[r, e], -s[r, e])
