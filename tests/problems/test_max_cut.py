"""Cuts against enumeration and known optima; every error with its message."""

import itertools

import networkx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from skewflow.errors import NonFiniteError, ShapeError
from skewflow.problems import max_cut
from skewflow.problems.max_cut.cpu import anneal


def best_cut(W):
    n = len(W)
    sides = np.array(list(itertools.product([1, -1], repeat=n - 1)))
    sides = np.hstack([np.ones((len(sides), 1)), sides])
    return max((W.sum() - np.einsum("ki,ij,kj->k", sides, W, sides)) / 4)


def weighted(n, seed):
    W = np.triu(np.random.default_rng(seed).integers(-3, 4, (n, n)), 1)
    return (W + W.T).astype(float)


@pytest.mark.parametrize("seed", range(3))
def test_small_cuts_are_the_best_and_lie_below_the_bound(seed):
    W = weighted(11, seed)
    cut = max_cut(W)
    assert cut.value == best_cut(W)
    assert cut.value == W[np.ix_(cut.side, ~cut.side)].sum()
    assert cut.value <= cut.bound
    assert cut.sdp.certified
    assert cut.relaxation <= cut.bound <= cut.relaxation * (1 + 1e-5)


def test_annealing_returns_by_how_much_the_cut_has_grown():
    W = sp.csr_array(weighted(30, 3))
    before = np.ones(30)
    after = before.copy()
    grown = anneal(W.indptr, W.indices, W.data, after, 50, 2.0, 1)
    assert set(after) == {-1.0, 1.0}
    assert grown == (before @ (W @ before) - after @ (W @ after)) / 4 > 0
    assert anneal(W.indptr, W.indices, W.data, after, 50, 0.0, 1) >= 0


def test_a_bipartite_graph_is_cut_whole():
    cut = max_cut(networkx.grid_2d_graph(6, 7))
    assert cut.value == networkx.grid_2d_graph(6, 7).number_of_edges()
    assert cut.bound < cut.value + 1e-3


def test_all_forms_of_a_graph_give_the_same_cut():
    W = weighted(9, 7)
    i, j = np.nonzero(np.triu(W))
    edges = [(int(a), int(b), W[a, b]) for a, b in zip(i, j, strict=True)]
    graph = networkx.Graph()
    graph.add_nodes_from(range(9))
    graph.add_weighted_edges_from(edges)
    tensor = torch.from_numpy(W)
    forms = (W, sp.csr_array(W), graph, edges, np.array(edges), tensor, tensor.to_sparse())
    cuts = [max_cut(form) for form in forms]
    assert max_cut(torch.ones(3, 3, dtype=torch.bfloat16) - torch.eye(3).bfloat16()).value == 2
    assert len({cut.value for cut in cuts}) == 1


def test_weights_of_edges_between_the_same_vertices_are_added_up():
    for graph in ([(0, 1), (1, 0), (1, 2)], networkx.MultiGraph([(0, 1), (0, 1), (1, 2)])):
        assert max_cut(graph).value == 3


def test_a_graph_in_parts_with_an_isolated_vertex_is_cut():
    W = np.zeros((7, 7))
    for i, j in ((0, 1), (1, 2), (2, 0), (3, 4), (4, 5)):
        W[i, j] = W[j, i] = 1
    cut = max_cut(W)
    assert cut.value == 4
    assert cut.value <= cut.bound < 4.26  # the triangle's relaxation is 9 / 4


@pytest.mark.bad_input
def test_bad_graphs_are_refused():
    with pytest.raises(ValueError, match="at least two vertices: got 1"):
        max_cut(np.zeros((1, 1)))
    with pytest.raises(ValueError, match="must be symmetric"):
        max_cut(np.triu(np.ones((3, 3)), 1))
    with pytest.raises(ValueError, match="no loops: vertex 0"):
        max_cut(np.eye(3))
    with pytest.raises(NonFiniteError, match="NaN"):
        max_cut([(0, 1, 1.0), (1, 2, float("nan"))])
    with pytest.raises(ValueError, match="`graph` must be real: got complex128"):
        max_cut(np.array([[0, 1 + 5j], [1 + 5j, 0]]))
    with pytest.raises(ValueError, match=r"between 1e-100 and 1e\+100: got 1e\+160"):
        max_cut([(0, 1, 1e160)])
    with pytest.raises(ValueError, match="undirected"):
        max_cut(networkx.DiGraph([(0, 1)]))
    with pytest.raises(ValueError, match=r"rows \(i, j\)"):
        max_cut([(0, 1, 2, 3)])
    with pytest.raises(ValueError, match="whole numbers"):
        max_cut([(0, -1)])
    with pytest.raises(ValueError, match=r"got an array of shape \(0,\)"):
        max_cut([])
    with pytest.raises(ValueError, match="at least two vertices: got 0"):
        max_cut(networkx.Graph())
    with pytest.raises(ValueError, match="its 3 rows are a symmetric matrix. Use numpy.array"):
        max_cut([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    with pytest.raises(ShapeError, match=r"square matrix: got shape \(0, 0\)"):
        max_cut(np.zeros((0, 0)))
    with pytest.raises(ShapeError, match=r"`initial` must have the shape \(2, 1, r\)"):
        max_cut([(0, 1)], initial=np.ones((3, 1, 2)))


def test_a_graph_without_edges_has_no_cut():
    cut = max_cut(np.zeros((3, 3)))
    assert cut.value == 0 <= cut.bound < 1e-300
