"""Pairs of graphs: random regular, strongly regular, street grids and sparse ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Graph = NDArray[np.int64]


def _edges(n: int, edges: Any) -> Graph:
    A = np.zeros((n, n), dtype=np.int64)
    for i, j in edges:
        A[i, j] = A[j, i] = 1
    return A


def _random_regular(degree: int) -> Callable[..., tuple[Graph, Graph, bool]]:
    def draw(n: int, rng: np.random.Generator) -> Graph:
        while True:  # until no edge occurs in two of the perfect matchings
            A = np.zeros((n, n), dtype=np.int64)
            for _ in range(degree):
                order = rng.permutation(n - n % 2).reshape(-1, 2)
                A += _edges(n, order)
            if A.max() == 1:
                return A

    return lambda n, rng: (draw(n, rng), draw(n, rng), False)


def _cayley(size: tuple[int, int], steps: set[tuple[int, int]]) -> Graph:
    m, k = size
    places = [(i, j) for i in range(m) for j in range(k)]
    return np.array(
        [[((a - c) % m, (b - d) % k) in steps for c, d in places] for a, b in places],
        dtype=np.int64,
    )


def _rook(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    line = {(0, k) for k in range(1, 4)} | {(k, 0) for k in range(1, 4)}
    diagonal = {(0, 1), (1, 0), (1, 1), (0, 3), (3, 0), (3, 3)}
    return _cayley((4, 4), line), _cayley((4, 4), diagonal), True  # the second is Shrikhande's


def _paley(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    q = 29
    squares = {(x * x % q, 0) for x in range(1, q)}
    A = _cayley((q, 1), squares)
    return A, _switched(A, rng), True


def _latin(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    """Latin square graphs of the groups Z4 and Z2 x Z2: both strongly regular (16, 9, 4, 6)."""

    def graph(product: Callable[[int, int], int]) -> Graph:
        cells = [(i, j, product(i, j)) for i in range(4) for j in range(4)]
        return np.array(
            [
                [a != b and any(x == y for x, y in zip(a, b, strict=True)) for b in cells]
                for a in cells
            ],
            dtype=np.int64,
        )

    return graph(lambda i, j: (i + j) % 4), graph(lambda i, j: i ^ j), True


def _grid(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    """A street grid without some streets, and one without another street."""
    m = max(3, round(n**0.5))
    cells = [(i, j) for i in range(m) for j in range(m)]
    streets = [
        (i * m + j, k * m + h)
        for i, j in cells
        for k, h in ((i + 1, j), (i, j + 1))
        if k < m and h < m
    ]
    keep = rng.permutation(len(streets))[: len(streets) - 3]
    A = _edges(m * m, [streets[e] for e in keep])
    return A, _switched(A, rng), False


def _molecule(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    """A random tree whose degrees are at most four, with a few rings."""

    def draw() -> Graph:
        A = np.zeros((n, n), dtype=np.int64)
        for v in range(1, n):
            u = rng.choice(np.flatnonzero(A[:v].sum(1) < 4)[-6:])
            A[u, v] = A[v, u] = 1
        for _ in range(3):
            u, v = rng.choice(np.flatnonzero(A.sum(1) < 4), 2, replace=False)
            A[u, v] = A[v, u] = 1
        return A

    return draw(), draw(), False


def _switched(A: Graph, rng: np.random.Generator) -> Graph:
    """A graph in which two edges ij and kl become ik and jl, so all degrees stay the same."""
    edges = np.argwhere(A)
    while True:
        (i, j), (k, m) = edges[rng.integers(len(edges), size=2)]
        if len({i, j, k, m}) == 4 and not A[i, k] and not A[j, m]:
            B = A.copy()
            B[i, j] = B[j, i] = B[k, m] = B[m, k] = 0
            B[i, k] = B[k, i] = B[j, m] = B[m, j] = 1
            return B


def _regular_switched(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    A, _, _ = _random_regular(4)(n, rng)
    return A, _switched(A, rng), False


def _rings(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    """One ring and two rings, which colour refinement does not distinguish."""
    half = n // 2
    one = _edges(2 * half, [(v, (v + 1) % (2 * half)) for v in range(2 * half)])
    two = _edges(2 * half, [(h + v, h + (v + 1) % half) for h in (0, half) for v in range(half)])
    return one, two, True


KINDS: dict[str, Callable[[int, np.random.Generator], tuple[Graph, Graph, bool]]] = {
    "random-cubic": _random_regular(3),
    "random-4-regular": _random_regular(4),
    "switched-4-regular": _regular_switched,
    "rook-shrikhande": _rook,
    "latin-squares": _latin,
    "switched-paley-29": _paley,
    "street-grids": _grid,
    "molecules": _molecule,
    "one-or-two-rings": _rings,
    "large-molecules": lambda n, rng: _molecule(2 * n, rng),
}
"""Makers of two graphs, with whether they are certainly not isomorphic, by kind."""
