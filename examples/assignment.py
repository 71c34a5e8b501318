"""Find a hidden renaming of a graph's vertices, and place machines on a floor at low cost."""

import numpy as np

from skewflow.problems import graph_isomorphism, quadratic_assignment


def renamed(n=30, seed=0):
    """A random cubic graph on a ring with chords, and a copy whose vertices have other names."""
    draw = np.random.default_rng(seed)
    A = np.zeros((n, n), dtype=int)
    ring = np.arange(n)
    chords = draw.permutation(n).reshape(2, -1)
    for i, j in (*zip(ring, np.roll(ring, 1), strict=True), *chords.T):
        A[i, j] = A[j, i] = 1
    names = draw.permutation(n)
    return A, A[np.ix_(names, names)]


def factory(rows=4, columns=5, seed=0):
    """Flows between machines, and distances between places on a grid."""
    draw = np.random.default_rng(seed)
    n = rows * columns
    flows = np.triu(draw.integers(0, 10, (n, n)) * (draw.random((n, n)) < 0.4), 1)
    x, y = np.divmod(np.arange(n), columns)
    distances = abs(x[:, None] - x) + abs(y[:, None] - y)
    return flows + flows.T, distances


def main():
    """Print the answer for the graphs, and the cost before and after."""
    A, B = renamed()
    answer = graph_isomorphism(A, B)
    p = answer.permutation
    print(f"isomorphic {answer.isomorphic}, {abs(A - B[np.ix_(p, p)]).sum()} entries differ")
    flows, distances = factory()
    result = quadratic_assignment(flows, distances)
    print(f"cost as numbered {(flows * distances).sum()}, as assigned {result.fun:.0f}")


if __name__ == "__main__":
    main()
