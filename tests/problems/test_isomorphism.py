"""Graphs whose isomorphism is known."""

import networkx as nx
import numpy as np
import pytest

from skewflow.errors import NonFiniteError, ShapeError
from skewflow.problems import graph_isomorphism


def shuffled(A, seed=0):
    p = np.random.default_rng(seed).permutation(len(A))
    return A[np.ix_(p, p)]


def dense(graph):
    return nx.to_numpy_array(graph, weight=None)


def paley(q):
    squares = {x * x % q for x in range(1, q)}
    return np.array([[(a - b) % q in squares for b in range(q)] for a in range(q)], dtype=int)


def rook():
    return dense(nx.line_graph(nx.complete_bipartite_graph(4, 4)))


def shrikhande():
    steps = {(0, 1), (1, 0), (1, 1), (0, 3), (3, 0), (3, 3)}
    places = [(i, j) for i in range(4) for j in range(4)]
    return np.array(
        [[((a - c) % 4, (b - d) % 4) in steps for c, d in places] for a, b in places], dtype=int
    )


GRAPHS = {
    "paley": lambda: paley(13),
    "rook": rook,
    "shrikhande": shrikhande,
    "regular": lambda: dense(nx.random_regular_graph(3, 16, seed=1)),
    "grid": lambda: dense(nx.grid_2d_graph(4, 5)),
    "two parts": lambda: dense(nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(5))),
    "empty": lambda: np.zeros((4, 4)),
    "one vertex": lambda: np.zeros((1, 1)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_renamed_graph_is_recognised_by_a_permutation(name):
    A = GRAPHS[name]()
    B = shuffled(A)
    answer = graph_isomorphism(A, B)
    assert answer.isomorphic
    p = answer.permutation
    assert sorted(p) == list(range(len(A)))
    assert np.array_equal(A, B[np.ix_(p, p)])


@pytest.mark.parametrize(
    "A, B, reason",
    [
        (np.zeros((3, 3)), np.zeros((4, 4)), "numbers of vertices"),
        (np.zeros((2, 2)), 1 - np.eye(2), "numbers of edges"),
        (dense(nx.path_graph(4)), dense(nx.star_graph(3)), "degrees"),
        (
            dense(nx.path_graph(7)),
            dense(nx.disjoint_union(nx.cycle_graph(3), nx.path_graph(4))),
            "after refinement differ",
        ),
        (
            dense(nx.cycle_graph(6)),
            dense(nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))),
            "one vertex singled out",
        ),
        (rook(), shrikhande(), "two vertices singled out"),
    ],
)
def test_a_difference_is_named(A, B, reason):
    answer = graph_isomorphism(A, shuffled(B))
    assert answer.isomorphic is False and answer.permutation is None
    assert reason in answer.reason


def test_two_switched_edges_are_noticed():
    A = dense(nx.random_regular_graph(4, 18, seed=2))
    B = A.copy()
    (a, b), (c, d) = next(
        ((i, j), (k, m))
        for i, j in np.argwhere(A)
        for k, m in np.argwhere(A)
        if len({i, j, k, m}) == 4 and not A[i, k] and not A[j, m]
    )
    B[a, b] = B[b, a] = B[c, d] = B[d, c] = 0
    B[a, c] = B[c, a] = B[b, d] = B[d, b] = 1
    assert graph_isomorphism(A, shuffled(B)).isomorphic == nx.is_isomorphic(
        nx.from_numpy_array(A), nx.from_numpy_array(B)
    )


def test_networkx_graphs_are_read():
    G = nx.petersen_graph()
    assert graph_isomorphism(G, nx.relabel_nodes(G, {i: 9 - i for i in range(10)})).isomorphic


def test_without_a_budget_the_answer_is_undecided(monkeypatch):
    monkeypatch.setattr("skewflow.problems.assignment.isomorphism.MOST_REFINEMENTS", 1)
    answer = graph_isomorphism(rook(), shuffled(shrikhande()), trials=1)
    assert answer.isomorphic is None


@pytest.mark.parametrize(
    "graph, error, words",
    [
        (np.ones((2, 3)), ShapeError, "square"),
        (np.triu(np.ones((3, 3)), 1), ValueError, "symmetric"),
        (2 * (1 - np.eye(3)), ValueError, "entries 0 and 1: got 2"),
        (np.eye(3), ValueError, "no loops: vertex 0"),
        (np.full((3, 3), np.nan), NonFiniteError, "finite"),
        (nx.DiGraph([(0, 1)]), ValueError, "undirected"),
    ],
)
def test_bad_graphs_are_refused(graph, error, words):
    with pytest.raises(error, match=words):
        graph_isomorphism(graph, np.zeros((3, 3)))
    with pytest.raises(error, match=words):
        graph_isomorphism(np.zeros((3, 3)), graph)


@pytest.mark.parametrize("option", ["seed", "trials"])
def test_bad_numbers_are_refused(option):
    with pytest.raises(ValueError, match=f"`{option}` must be a whole number of at least 0"):
        graph_isomorphism(nx.cycle_graph(4), nx.cycle_graph(4), **{option: -1})
