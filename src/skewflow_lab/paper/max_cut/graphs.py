"""Graphs to cut: Gset's files, and small generated ones."""

import gzip

import numpy as np
from numpy.typing import NDArray

from ...data.graphs import graph_file
from ...runs.files import RunError

Edges = NDArray[np.float64]


def load(name: str) -> tuple[int, Edges]:
    """The number of vertices and the rows (i, j, weight) of a graph.

    Args:
        name: A graph of Gset, or "grid-k" and "random-n": a toroidal k x k grid with weights +1 and
            -1, as G11, and a random graph of n vertices and degree 8.
    """
    kind, _, size = name.partition("-")
    if kind == "grid" and size.isdigit() and int(size) > 2:
        return _grid(int(size))
    if kind == "random" and size.isdigit() and int(size) > 9:
        return _random(int(size))
    if size:
        raise RunError(f"{name!r} is not a graph: use a name of Gset, grid-8 or random-60.")
    words = gzip.decompress(graph_file("gset", name).read_bytes()).split()
    n, m = int(words[0]), int(words[1])
    edges = np.array(words[2 : 2 + 3 * m], dtype=np.float64).reshape(m, 3)
    edges[:, :2] -= 1
    return n, edges


def _grid(k: int) -> tuple[int, Edges]:
    place = np.arange(k * k).reshape(k, k)
    ends = [np.stack([place, np.roll(place, -1, axis)], -1).reshape(-1, 2) for axis in (0, 1)]
    signs = np.random.default_rng(k).choice([-1.0, 1.0], 2 * k * k)
    return k * k, np.column_stack([np.concatenate(ends), signs])


def _random(n: int) -> tuple[int, Edges]:
    i, j = np.triu_indices(n, 1)
    chosen = np.random.default_rng(n).random(len(i)) < 8 / (n - 1)
    return n, np.column_stack([i[chosen], j[chosen], np.ones(chosen.sum())])


def cut_weight(edges: Edges, side: NDArray[np.bool_]) -> int | float:
    """The weight of the cut, summed edge by edge, as a check independent of the library."""
    one = {int(i) for i in np.flatnonzero(side)}
    total = sum(w for i, j, w in edges.tolist() if (int(i) in one) != (int(j) in one))
    return int(total) if total == int(total) else total
