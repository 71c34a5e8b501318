"""What the compiled loops over blocks compute, in numpy; never tuned."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def polar(V: Array) -> Array:
    """The nearest matrices with orthonormal rows, (*batch, p, r)."""
    U, _, W = np.linalg.svd(V, full_matrices=False)
    return U @ W


def multipliers(G: Array, Y: Array) -> Array:
    """The symmetric part of G_i Y_iᵀ for each block i."""
    S = G @ Y.mT
    return (S + S.mT) / 2


def to_tangent(V: Array, Y: Array) -> Array:
    """The orthogonal projection of `V` to the tangent space at `Y`."""
    return V - multipliers(V, Y) @ Y


def sweep(C: Array, Y: Array, omega: float) -> tuple[Array, float]:
    """One pass of over-relaxed block steps; returns the new point and the decrease of <C, Y Yᵀ>.

    With the other blocks fixed, the objective is 2 <G_i, Y_i> plus a constant, where G_i sums
    C_ij Y_j over j != i. Its minimiser is T_i, minus the polar factor of G_i. The step goes to the
    polar factor of (1 - omega) Y_i + omega T_i, or to T_i if the objective would grow. A block
    with a G_i of deficient rank has more than one minimiser and stays.
    """
    n, p, _ = Y.shape
    Y, decrease = Y.copy(), 0.0
    blocks = C.reshape(n, p, n, p)
    for i in range(n):
        G = sum((blocks[i, :, j] @ Y[j] for j in range(n) if j != i), np.zeros_like(Y[i]))
        if np.linalg.matrix_rank(G, tol=1e-12 * np.linalg.norm(G, 2)) < p:
            continue
        new = polar((1 - omega) * Y[i] - omega * polar(G))
        if (G * new).sum() > (G * Y[i]).sum():
            new = -polar(G)
        decrease += 2 * float((G * (Y[i] - new)).sum())
        Y[i] = new
    return Y, decrease
