"""SE-Sync's cost matrix: the connection Laplacian with the translations eliminated."""

from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]

from ..block_sdp.cost import Shifted, SparseCost, block_diagonal
from ..block_sdp.factor import factorise
from ..block_sdp.reference import Array
from .pose_graph import PoseGraph

ROOMS = 8
"""Factorisations until the room for the rounding errors of a factorisation is large enough."""

_ROUNDOFF = 2.0**-53


def laplacian(graph: PoseGraph, weights: Array) -> Any:
    """The connection Laplacian: <L, Y Yᵀ> sums kappa |Y_j - R_ijᵀ Y_i|² with Y_i = R_iᵀ."""
    n, d, m = graph.n, graph.d, len(graph.edges)
    i, j = graph.edges.T
    rows = d * np.arange(m)[:, None] + np.arange(d)
    first, second = (d * k[:, None] + np.arange(d) for k in (i, j))
    plus = sp.csr_array((np.ones(m * d), (rows.ravel(), second.ravel())), shape=(m * d, n * d))
    minus = sp.csr_array(
        (
            graph.rotations.mT.ravel(),
            (np.repeat(rows.ravel(), d), np.repeat(first[:, None, :], d, axis=1).ravel()),
        ),
        shape=(m * d, n * d),
    )
    difference = plus - minus
    return _gram(difference, np.repeat(weights * graph.rotation_weights, d))


def _gram(A: Any, weights: Array) -> Any:
    half = sp.diags_array(np.sqrt(weights)) @ A
    L = half.T @ half
    L = ((L + L.T) / 2).tocsr()
    L.sort_indices()
    return L


class EliminatedCost:
    r"""$Q = P - V^\top L^{-1} V$, in factors.

    L is the Laplacian of the translations with the pose `anchor` at the origin, P the rotation part
    and V what couples them: the minimum over all translations of the squared residuals. Rounding
    errors of L count by the squared distance of a pose from the anchor.
    """

    def __init__(self, graph: PoseGraph, weights: Array, anchor: int = 0) -> None:
        assert graph.translations is not None and graph.translation_weights is not None
        self.n, self.p = graph.n, graph.d
        n, d, m = graph.n, graph.d, len(graph.edges)
        i, j = graph.edges.T
        e = np.arange(m)
        incidence = sp.csr_array(
            (np.repeat([-1.0, 1.0], m), (np.tile(e, 2), np.concatenate([i, j]))), shape=(m, n)
        )
        moved = sp.csr_array(
            (
                graph.translations.ravel(),
                (np.repeat(e, d), (d * i[:, None] + np.arange(d)).ravel()),
            ),
            shape=(m, n * d),
        )
        tau = weights * graph.translation_weights
        self._anchor = anchor
        incidence = incidence[:, np.arange(n) != anchor]
        self._V = -(incidence.T @ sp.diags_array(tau) @ moved).tocsr()
        self._VT = self._V.T.tocsr()
        self._P = laplacian(graph, weights) + _gram(moved, tau)
        self._L = _gram(incidence, tau)
        factor = factorise(self._L)
        assert factor is not None, "the reduced Laplacian of a connected graph is definite"
        self._solve_L = factor.solve
        self.size = float(self._P.diagonal().sum())
        # The elimination is exact only for a translation block that leaves room for rounding.
        self._room = {False: 2 * factor.excess, True: 2 * factor.tight()}

    def translations(self, Y: Array) -> Array:
        """The best translations (n, r) for Y (n, p, r), the first pose at the origin."""
        t = -self._solve_L(self._V @ Y.reshape(self.n * self.p, -1))
        t = np.insert(t, self._anchor, 0.0, axis=0)
        return t - t[0]

    def apply(self, Y: Array) -> Array:
        """Q Y."""
        flat = Y.reshape(self.n * self.p, -1)
        return (self._P @ flat - self._VT @ self._solve_L(self._V @ flat)).reshape(Y.shape)

    def shifted(self, D: Array, tight: bool = False) -> Shifted | None:
        """Factorise the sparse matrix whose Schur complement is Q + D.

        By Haynsworth's inertia formula Q + D is positive definite if the whole matrix is. Its
        translation block is taken smaller than L by `room`; where this is more than the rounding
        error of the factorisation, the statement holds for L in exact arithmetic.
        """
        k = self.n - 1
        R = self._P + block_diagonal(D)
        room = self._room[tight]
        for _ in range(ROOMS):
            L = self._L - sp.diags_array(room)
            A = sp.block_array([[L, self._V], [self._VT, R]], format="csc")
            factor = factorise(A)
            if factor is None:
                return None
            excess = factor.tight() if tight else factor.excess
            # The subtraction rounds the diagonal of L, the sum that of the rotation part.
            excess[:k] += _ROUNDOFF * self._L.diagonal()
            excess[k:] += 2 * _ROUNDOFF * np.asarray(abs(R).sum(axis=1)).ravel()
            if (excess[:k] <= room).all():
                return Shifted(D, excess[k:], partial(self._solve, factor))
            # The errors of a few rows differ from one factorisation to the next.
            room = self._room[tight] = np.maximum(room, 1.25 * excess[:k])
        return None

    def _solve(self, factor: Any, V: Array) -> Array:
        flat = V.reshape(self.n * self.p, -1)
        padded = np.concatenate([np.zeros((self.n - 1, flat.shape[1])), flat])
        return np.ascontiguousarray(factor.solve(padded)[self.n - 1 :]).reshape(V.shape)


def rotation_cost(graph: PoseGraph, weights: Array) -> SparseCost:
    """The cost of the rotations only."""
    return SparseCost(laplacian(graph, weights), graph.d)
