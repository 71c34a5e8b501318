"""Max-cut: the semidefinite bound, random hyperplanes, and annealing."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..block_sdp import BlockSDP, solve_block_sdp
from ..block_sdp.reference import Array
from . import cpu
from .graph import weights

HYPERPLANES = 200
"""Random hyperplanes; annealing starts at the best few of their cuts."""

STARTS = 8
"""Cuts that annealing improves."""

SWEEPS = 2000
"""Visits of each vertex in one annealing: 0.05 s at 2,000 vertices of degree 20."""

HOT = 0.3
"""First temperature, relative to the root mean square over vertices of the norm of the weights."""


@dataclass(frozen=True)
class MaxCut:
    """A cut and a proof of how far it is from the largest one (Sec. 1)."""

    side: NDArray[np.bool_]
    """The side of each vertex."""
    value: float
    """Weight of the edges between the two sides."""
    bound: float
    """No cut weighs more: proven up to and including rounding errors."""
    relaxation: float
    """Value of the semidefinite relaxation, between its proven bound and `gap` below it."""
    sdp: BlockSDP
    """The solution of the relaxation."""


def max_cut(
    graph: Any,
    *,
    tol: float = 1e-6,
    seed: int = 0,
    rank: int | None = None,
    initial: Any = None,
) -> MaxCut:
    r"""Cut the vertices of a weighted graph in two, and bound the largest cut.

    Solves the relaxation of Goemans and Williamson (1995),
    $\max \frac14 \sum_{ij} w_{ij} (1 - Z_{ij})$ over $Z \succeq 0$ with unit diagonal, rounds it by
    random hyperplanes and improves the best cuts by simulated annealing. Not in the paper.

    Args:
        graph: An undirected networkx graph, a symmetric matrix of weights (scipy.sparse, numpy or
            torch), or a list of edges (i, j) or (i, j, weight), whose weights are added up where
            a pair occurs twice. It need not be connected, and weights may be negative.
        tol: Relative gap of the relaxation at which its solver stops.
        seed: Seed of the start, the hyperplanes and the annealing.
        rank: Columns of the first factor, as in `solve_block_sdp`.
        initial: A start (n, 1, r) with unit rows, as in `solve_block_sdp`.

    Raises:
        ValueError: If the graph is directed, asymmetric or has loops or fewer than two vertices.
        NonFiniteError: If a weight is NaN or infinite.

    Example:
        >>> from skewflow.problems import max_cut
        >>> pentagon = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
        >>> cut = max_cut(pentagon)
        >>> cut.value, round(cut.bound, 3)
        (4.0, 4.523)
    """
    W = weights(graph)
    sdp = solve_block_sdp(W / 4, tol=tol, seed=seed, rank=rank, initial=initial)
    total = math.fsum(W.data) / 4
    side = _round(W, sdp.factor[:, 0, :], seed)
    return MaxCut(
        side=side,
        value=cut_value(W, side),
        bound=math.nextafter(total - sdp.bound, math.inf),
        relaxation=total - sdp.value,
        sdp=sdp,
    )


def cut_value(W: Any, side: NDArray[np.bool_]) -> float:
    """Weight of the edges whose ends lie on different sides."""
    edges = W.tocoo()
    i, j = edges.coords
    return math.fsum(edges.data[(side[i] != side[j]) & (i < j)])


def _round(W: Any, Y: Array, seed: int) -> NDArray[np.bool_]:
    normals = np.random.default_rng(seed).standard_normal((Y.shape[1], HYPERPLANES))
    sides = np.where(Y @ normals >= 0, 1.0, -1.0)
    order = np.argsort((sides * (W @ sides)).sum(axis=0), kind="stable")
    hot = HOT * math.sqrt((W.data**2).sum() / len(Y))
    best, chosen = -math.inf, sides[:, 0] > 0
    for k in order[:STARTS]:
        side = np.ascontiguousarray(sides[:, k])
        cpu.anneal(W.indptr, W.indices, W.data, side, SWEEPS, hot, seed + int(k))
        value = cut_value(W, side > 0)
        if value > best:
            best, chosen = value, side > 0
    return chosen
