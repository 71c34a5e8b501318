"""Directions of negative curvature by Lanczos; what it finds is an upper bound, not a proof."""

import numpy as np

from .cost import Cost, Shifted
from .point import Point
from .reference import Array

STEPS = 80
"""Lanczos steps with full reorthogonalisation. They cost less than ten sweeps at rank 20."""

INVERSE_STEPS = 15
"""Lanczos steps on the inverse, which separates the lowest eigenvalues well."""


def lowest(cost: Cost, D: Array) -> tuple[Array, Array]:
    """Ritz values of C + D, the lowest first, and their vectors (n, p, k)."""
    from . import cpu

    def apply(v: Array) -> Array:
        W = cost.apply(v)
        cpu.add_blocks(D, v, W)
        return W

    return _lanczos(apply, cost.n, cost.p, STEPS)


def lowest_by_inverse(cost: Cost, shifted: Shifted, point: Point) -> tuple[Array, Array]:
    """The same of the dual matrix at `point`, by the factorisation of a shifted one near it."""
    from . import cpu

    _, vectors = _lanczos(lambda v: -shifted.solve(v), cost.n, cost.p, INVERSE_STEPS)
    vectors = np.ascontiguousarray(vectors)
    # The factorised matrix includes room for rounding errors; the quotients are of the true one.
    images = cost.apply(vectors)
    cpu.add_blocks(point.shift(0.0), vectors, images)
    return (vectors * images).sum(axis=(0, 1)), vectors


def _lanczos(apply, n: int, p: int, steps: int) -> tuple[Array, Array]:  # type: ignore[no-untyped-def]
    size = n * p
    steps = min(steps, size)
    Q = np.zeros((steps, size))
    T = np.zeros((steps, steps))
    q = np.random.default_rng(0).standard_normal(size)
    for k in range(steps):
        Q[k] = q / np.linalg.norm(q)
        w = apply(np.ascontiguousarray(Q[k]).reshape(n, p, 1)).ravel()
        T[k, k] = Q[k] @ w
        for _ in range(2):  # one pass of Gram-Schmidt loses orthogonality as Ritz values converge
            w = w - Q[: k + 1].T @ (Q[: k + 1] @ w)
        q = w
        norm = float(np.linalg.norm(q))
        if k + 1 == steps or norm <= 1e-12 * np.abs(T).max():
            steps = k + 1
            break
        T[k, k + 1] = T[k + 1, k] = norm
    values, vectors = np.linalg.eigh(T[:steps, :steps])
    return values, (vectors.T @ Q[:steps]).T.reshape(n, p, steps)
