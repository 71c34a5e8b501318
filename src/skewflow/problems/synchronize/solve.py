"""Synchronisation over SO(d) and SE(d): relaxation, rounding, certificate, robust losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from ...errors import NonFiniteError
from .._matrices import from_torch, limit, positive
from ..block_sdp import BlockSDP
from ..block_sdp.cost import SparseCost
from ..block_sdp.reference import Array
from ..block_sdp.solve import slack, staircase
from .cost import EliminatedCost, rotation_cost
from .pose_graph import PoseGraph
from .robust import reweighted
from .rounding import chordal_start, nearest_rotations, rounded

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Synchronization:
    """Poses and a proof of how good they are (Sec. 1)."""

    rotations: Array
    """R_i, (n, d, d)."""
    translations: Array | None
    """t_i, (n, d), the first at the origin; None if only rotations were measured."""
    value: float
    """The objective at these poses: SE-Sync's, or the sum of the robust loss."""
    bound: float
    """No poses have a lower objective: proven up to and including rounding errors. It is minus
    infinity for a robust loss, which is not convex."""
    certified: bool
    """Whether the gap is at most the tolerance, or value and bound are zero up to rounding."""
    weights: Array
    """The factor of each measurement, (m): 1 without a robust loss, near 0 for outliers."""
    sdp: BlockSDP
    """The solution of the relaxation, with these weights."""

    @property
    def gap(self) -> float:
        """(value - bound) / value."""
        return (self.value - self.bound) / max(abs(self.value), 1e-300)


def synchronize(
    graph: PoseGraph,
    *,
    loss: Loss | None = None,
    initial: ArrayLike | None = None,
    tol: float = 1e-5,
    max_steps: int = 100,
) -> Synchronization:
    r"""Find the poses that fit relative measurements best, and prove it.

    Minimises SE-Sync's objective (Rosen, Carlone, Bandeira, Leonard, 2019)
    $\sum \kappa_{ij} |R_j - R_i \tilde R_{ij}|_F^2 + \tau_{ij} |t_j - t_i - R_i \tilde t_{ij}|^2$.
    The best translations are a linear function of the rotations; eliminating them by a sparse
    factorisation leaves a block-diagonal semidefinite program. Where its solution has rank d, it
    is the global optimum, and the bound says so. Not in the paper.

    Args:
        graph: The measurements, for example from `read_g2o`.
        loss: A function of the weighted residual norms (m), whose sum is minimised instead of that
            of their squares, by reweighted least squares. Written with torch, for the derivative.
        initial: Rotations (n, d, d) to start at; the chordal relaxation by default.
        tol: Relative gap between value and bound at which the solver stops.
        max_steps: Most steps of the trust region, in each round of reweighting.

    Example:
        >>> import numpy as np
        >>> from skewflow.problems import PoseGraph, synchronize
        >>> square = PoseGraph(
        ...     edges=np.array([[0, 1], [1, 2], [2, 3], [3, 0]]),
        ...     rotations=np.tile([[0.0, -1.0], [1.0, 0.0]], (4, 1, 1)),
        ...     translations=np.tile([1.0, 0.0], (4, 1)),
        ...     rotation_weights=np.ones(4),
        ...     translation_weights=np.ones(4),
        ... )
        >>> poses = synchronize(square)
        >>> print(np.abs(poses.rotations[0].T @ (poses.translations[2])).round(6))
        [1. 1.]
    """
    positive(tol, "tol", "1e-5")
    limit(max_steps, "max_steps")
    if initial is None:
        start = chordal_start(graph)
    else:
        start = np.array(from_torch(initial), dtype=np.float64)
        if start.shape != (graph.n, graph.d, graph.d):
            raise ValueError(
                f"`initial` must have shape {(graph.n, graph.d, graph.d)}: got {start.shape}."
            )
        if not np.isfinite(start).all():
            raise NonFiniteError(
                "`initial` must be finite: leave it out, and the chordal relaxation is the start."
            )
        start = nearest_rotations(start)
    weights = np.ones(len(graph.edges))
    if loss is not None:
        return reweighted(_solve, graph, start, loss, tol=tol, max_steps=max_steps)
    return _solve(graph, start, weights, tol=tol, max_steps=max_steps)


def average_rotations(
    edges: ArrayLike,
    rotations: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    loss: Loss | None = None,
    initial: ArrayLike | None = None,
    tol: float = 1e-5,
    max_steps: int = 100,
) -> Synchronization:
    r"""Find the rotations whose quotients fit measured ones best, and prove it.

    Minimises $\sum w_{ij} |R_j - R_i \tilde R_{ij}|_F^2$ over SO(2) or SO(3). Not in the paper.

    Args:
        edges: The rotations i and j of each measurement, (m, 2), numbered from 0.
        rotations: Measured R_iᵀ R_j, (m, d, d).
        weights: Their weights, (m); ones by default.
        loss: As in `synchronize`.
        initial: As in `synchronize`.
        tol: As in `synchronize`.
        max_steps: As in `synchronize`.
    """
    measured = np.atleast_1d(np.array(from_torch(rotations), dtype=np.float64))
    graph = PoseGraph(
        edges=np.array(from_torch(edges)),
        rotations=measured,
        translations=None,
        rotation_weights=np.ones(len(measured))
        if weights is None
        else np.array(from_torch(weights), dtype=np.float64),
        translation_weights=None,
    )
    return synchronize(graph, loss=loss, initial=initial, tol=tol, max_steps=max_steps)


def _solve(
    graph: PoseGraph, start: Array, weights: Array, *, tol: float, max_steps: int
) -> Synchronization:
    cost: EliminatedCost | SparseCost
    Y = np.ascontiguousarray(start.mT)
    if graph.translations is None:
        cost = rotation_cost(graph, weights)
    else:
        place = EliminatedCost(graph, weights).translations(Y)
        middle = int(((place - place.mean(axis=0)) ** 2).sum(axis=1).argmin())
        cost = EliminatedCost(graph, weights, middle)
    sdp = staircase(cost, Y, tol=tol / 2, max_rank=graph.n * graph.d, max_steps=max_steps, sweeps=0)
    R = rounded(sdp.factor)
    t = cost.translations(R.mT) if isinstance(cost, EliminatedCost) else None
    value = float(weights @ residuals(graph, R, t))
    certified = value - sdp.bound <= slack(value, cost.size, tol)
    return Synchronization(R, t, value, sdp.bound, certified, weights, sdp)


def residuals(graph: PoseGraph, R: Array, t: Array | None) -> Array:
    """The weighted squared residual of each measurement, (m)."""
    i, j = graph.edges.T
    turned = ((R[j] - R[i] @ graph.rotations) ** 2).sum(axis=(1, 2))
    total = graph.rotation_weights * turned
    if t is not None:
        assert graph.translations is not None and graph.translation_weights is not None
        moved = t[j] - t[i] - (R[i] @ graph.translations[..., None])[..., 0]
        total = total + graph.translation_weights * (moved**2).sum(axis=1)
    assert math.isfinite(total.sum())
    return total
