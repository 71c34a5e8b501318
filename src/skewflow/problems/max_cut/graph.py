"""Weighted undirected graphs from what users have."""

from typing import Any

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]

from .._matrices import symmetric


def weights(graph: Any) -> Any:
    """The symmetric weight matrix of a graph, in compressed rows, without loops.

    Raises:
        ValueError: If the graph is directed, has a loop, or has fewer than two vertices.
    """
    if hasattr(graph, "is_directed"):  # networkx
        if graph.is_directed():
            raise ValueError(
                "`graph` must be undirected: got a directed one. Call `graph.to_undirected()`."
            )
        import networkx  # type: ignore[import-untyped]

        _at_least_two(len(graph))
        graph = networkx.to_scipy_sparse_array(graph, dtype=np.float64)
    elif isinstance(graph, (list, tuple)):
        graph = _from_edges(_not_a_matrix(np.asarray(graph, dtype=np.float64)))
    elif isinstance(graph, np.ndarray) and graph.ndim == 2 and graph.shape[0] != graph.shape[1]:
        graph = _from_edges(graph.astype(np.float64))
    W = symmetric(graph, "graph")
    _at_least_two(W.shape[0])
    loops = np.flatnonzero(W.diagonal())
    if len(loops):
        raise ValueError(
            f"`graph` must have no loops: vertex {loops[0]} has one. "
            "No cut separates a vertex from itself: remove the diagonal."
        )
    W.eliminate_zeros()
    return W


def _at_least_two(n: int) -> None:
    if n < 2:
        raise ValueError(
            f"`graph` must have at least two vertices: got {n}. There is nothing to cut."
        )


def _not_a_matrix(edges: Any) -> Any:
    if edges.ndim == 2 and np.array_equal(edges, edges.T) and not edges.diagonal().any():
        raise ValueError(
            f"`graph` must hold edges where it is a list: its {len(edges)} rows are a symmetric "
            "matrix. Use numpy.array(graph) for the matrix, or write edges of one pair as one edge."
        )
    return edges


def _from_edges(edges: Any) -> Any:
    if edges.ndim != 2 or edges.shape[1] not in (2, 3) or len(edges) == 0:
        raise ValueError(
            "a list of edges must hold rows (i, j) or (i, j, weight): "
            f"got an array of shape {edges.shape}."
        )
    ends = edges[:, :2]
    if not (np.isfinite(ends).all() and (ends >= 0).all() and (ends == ends.round()).all()):
        raise ValueError("vertices of an edge list must be whole numbers from 0 on.")
    i, j = ends.T.astype(np.int64)
    w = edges[:, 2] if edges.shape[1] == 3 else np.ones(len(edges))
    n = int(ends.max()) + 1
    upper = sp.coo_array((w, (i, j)), shape=(n, n)).tocsr()
    return upper + upper.T
