"""Pictures of two graphs and the permutation that maps one to the other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .kinds import Graph

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Array = NDArray[Any]


def drawing(A: Graph, B: Graph, p: NDArray[np.int64]) -> dict[str, Any]:
    """The edges of both graphs, and the vertex of B that belongs to each of A."""
    return {
        "first": np.argwhere(np.triu(A)).tolist(),
        "second": np.argwhere(np.triu(B)).tolist(),
        "permutation": p.tolist(),
    }


def draw_matches(canvas: "Canvas", drawn: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the first graph, the second on a circle, and the second in the layout of the first."""
    axes = canvas.subplots(len(drawn), 3, squeeze=False)
    for (kind, picture), row in zip(drawn.items(), axes, strict=True):
        p = np.array(picture["permutation"])
        first, second = (np.array(picture[k]).reshape(-1, 2) for k in ("first", "second"))
        n = len(p)
        angle = 2 * np.pi * np.arange(n) / n
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        places = layout(n, first)
        order = np.argsort(np.arctan2(*(places - places.mean(axis=0)).T))
        colours = np.empty(n)
        colours[order] = np.arange(n) / n
        matched = np.empty_like(places)
        matched[p] = places
        taken = np.empty(n)
        taken[p] = colours
        for axis, edges, where, colour in (
            (row[0], first, places, colours),
            (row[1], second, circle, taken),
            (row[2], second, matched, taken),
        ):
            axis.plot(*where[edges].transpose(2, 1, 0), color="0.7", lw=0.7, zorder=1)
            axis.scatter(*where.T, c=colour, cmap="hsv", s=16, zorder=2)
            axis.set_aspect("equal")
            axis.set_axis_off()
        row[0].set_title(f"{kind}: first", fontsize=8)
        row[1].set_title("second, as named", fontsize=8)
        row[2].set_title("second, matched", fontsize=8)


def layout(n: int, edges: Array) -> Array:
    """Places of vertices by stress: distances in the plane like those along the edges.

    Majorisation (Gansner, Koren and North 2004) with weights of one over the square of the
    distance.
    """
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import shortest_path  # type: ignore[import-untyped]

    ones = np.ones(len(edges))
    distance = shortest_path(coo_array((ones, edges.T), shape=(n, n)), directed=False)
    distance[np.isinf(distance)] = distance[np.isfinite(distance)].max() + 1
    np.fill_diagonal(distance, 1.0)
    weight = distance**-2.0
    np.fill_diagonal(weight, 0.0)
    inverse = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    # Two principal coordinates (Torgerson 1952) are a start without most crossings.
    squares = distance**2 - (distance**2).mean(axis=0)
    _, vectors = np.linalg.eigh(squares.mean(axis=1, keepdims=True) - squares)
    X = vectors[:, -2:] * np.sqrt(n)
    for _ in range(300):
        apart = np.linalg.norm(X[:, None] - X, axis=2)
        np.fill_diagonal(apart, 1.0)
        pull = weight * distance / np.maximum(apart, 1e-9)
        X = inverse @ (pull.sum(axis=1)[:, None] * X - pull @ X)
    return X
