import networkx
import pytest
import torch

from cases import WEIGHTS, gaussian
from skewflow.tournaments import EdgeWeights, heavy_matchings, partition_weight


@pytest.mark.parametrize("method", ["exact", "greedy", "locally-heaviest"])
@pytest.mark.parametrize("d", [2, 3, 4, 5, 8, 11, 20])
@pytest.mark.parametrize("weights", ["gaussian", "sparse"])
def test_peeled_matchings_are_a_non_intersecting_family(method, d, weights, generator):
    W = EdgeWeights.of(WEIGHTS[weights](d, generator))
    family = heavy_matchings(W, method)  # the constructor checks that each edge is held once
    assert len(family) >= (d - 1 if d % 2 == 0 else d)
    assert all(set(T.sizes) <= {1, 2} for T in family)


@pytest.mark.parametrize("d", [4, 7, 10])
def test_the_first_exact_matching_is_the_heaviest_there_is(d, generator):
    W = EdgeWeights.of(gaussian(d, generator))
    graph = networkx.from_numpy_array(W.dense().abs().numpy())
    oracle = networkx.max_weight_matching(graph, maxcardinality=True)
    heaviest = sum(graph.edges[e]["weight"] for e in oracle)
    first = partition_weight(W, heavy_matchings(W, "exact")[0], "abs")
    assert abs(first - heaviest) < 1e-9 * heaviest


@pytest.mark.parametrize("d", [4, 7, 16, 25])
def test_locally_heaviest_equals_greedy_for_distinct_weights(d, generator):
    W = EdgeWeights.of(gaussian(d, generator))
    greedy, local = heavy_matchings(W, "greedy"), heavy_matchings(W, "locally-heaviest")
    assert [T.key() for T in greedy] == [T.key() for T in local]


def test_locally_heaviest_ends_on_equal_weights():
    W = EdgeWeights.of(torch.ones(9, 9).triu(1) - torch.ones(9, 9).tril(-1))
    assert len(heavy_matchings(W, "locally-heaviest")) >= 9


@pytest.mark.parametrize("d", [6, 10, 15])
def test_the_first_greedy_matching_has_at_least_half_the_maximum_weight(d, generator):
    for _ in range(10):
        W = EdgeWeights.of(WEIGHTS["heavy"](d, generator))
        greedy = partition_weight(W, heavy_matchings(W, "greedy")[0], "abs")
        exact = partition_weight(W, heavy_matchings(W, "exact")[0], "abs")
        assert exact / 2 <= greedy <= exact * (1 + 1e-9)


@pytest.mark.bad_input
def test_an_unknown_method_is_refused(generator):
    W = EdgeWeights.of(gaussian(4, generator))
    with pytest.raises(ValueError, match=r"`method` must be one of 'exact'.*'blossom'"):
        heavy_matchings(W, "blossom")


@pytest.mark.bad_input
def test_exact_matchings_without_rustworkx_say_what_to_install(monkeypatch, generator):
    import sys

    monkeypatch.setitem(sys.modules, "rustworkx", None)
    W = EdgeWeights.of(gaussian(4, generator))
    with pytest.raises(ModuleNotFoundError, match=r'skewflow\[lab\].*method="greedy"'):
        heavy_matchings(W, "exact")
