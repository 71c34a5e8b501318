"""What stands here and not in the paper: better weights, sweeps, certified bounds."""

from itertools import combinations, product

import pytest
import torch

from cases import PATTERNS, WEIGHTS, gaussian, heavy
from helpers import assert_close, randn, scipy_expm
from skewflow.samplers import HRegular, Importance, Optimal, Uniform
from skewflow.tournaments import (
    EdgeWeights,
    edge_probability,
    heavy_matchings,
    partition_norm,
    partition_weight,
    round_robin,
)
from skewflow.tournaments.theory import (
    certified_norm,
    enumerate_partitions,
    exact_variance,
    h_regular_inclusion_dense,
    h_regular_variance,
    horvitz_thompson_variance,
    joint_edge_probabilities,
    num_partitions_with_edge,
    optimal_variance,
    sweep_variance,
    uniform_variance,
)

pytestmark = pytest.mark.many_calls


def edges_of(T):
    return {tuple(e) for e in T.edges().tolist()}


@pytest.mark.parametrize("sizes", PATTERNS, ids=str)
def test_edge_completion_has_exactly_the_h_regular_law(sizes, generator):
    d = sum(sizes)
    W = EdgeWeights.of(heavy(d, generator))
    partitions = list(enumerate_partitions(d, sizes))
    ways = num_partitions_with_edge(d, sizes)
    chance = torch.zeros(len(partitions), dtype=torch.float64)
    for i, j in combinations(range(d), 2):
        with_edge = [n for n, T in enumerate(partitions) if (i, j) in edges_of(T)]
        assert len(with_edge) == ways
        chance[with_edge] += 2 * abs(W.dense()[i, j].item()) / W.h_norm("abs") / ways
    law = torch.tensor([p for _, p in HRegular(sizes).law(W)], dtype=torch.float64)
    assert_close("law", law, chance)


def test_squared_row_norms_need_no_entry_of_omega(generator):
    for shape in ((40, 40), (40, 3)):
        X, G = randn(*shape, generator=generator), randn(*shape, generator=generator)
        W = EdgeWeights(X, G)
        norms = W.row_norms()
        assert W.evaluated == 0
        assert_close("row norms", W.dense().norm(dim=1), norms)


def test_squared_row_norms_stay_accurate_where_the_gradient_is_almost_normal(generator):
    X = torch.linalg.qr(randn(30, 30, generator=generator)).Q
    S = randn(30, 30, generator=generator)
    small = 1e-9 * gaussian(30, generator)
    W = EdgeWeights(X, (S + S.mT + small) @ X)  # Omega = 2 * small, the gradient is of size 1
    norms = W.row_norms()
    exact = EdgeWeights.of(2 * small).row_norms()
    assert ((norms - exact).abs() / exact).max() < 1e-5


@pytest.mark.parametrize("sizes", PATTERNS, ids=str)
@pytest.mark.parametrize("h", ["abs", "square"])
def test_inclusion_probabilities_have_a_closed_form(sizes, h, generator):
    d = sum(sizes)
    W = EdgeWeights.of(heavy(d, generator))
    pi = torch.eye(d, dtype=torch.float64)
    for t, p in HRegular(sizes, h).law(W):
        i, j = t.partition.edges().unbind(-1)
        pi[i, j] += p
        pi[j, i] += p
    assert_close("pi", pi, h_regular_inclusion_dense(W, sizes, h))


@pytest.mark.parametrize("d, s", [(6, 2), (6, 3), (8, 2), (8, 4), (9, 3)])
def test_joint_edge_probabilities_reduce_to_the_formulas_for_even_blocks(d, s):
    sharing, disjoint = joint_edge_probabilities(d, s)
    m = d * (s - 1) // 2
    assert sharing * (d - 2) == s - 2
    assert disjoint * ((d - 2) * (d - 3) // 2) == m - 1 - 2 * (s - 2)


@pytest.mark.parametrize("weights", sorted(WEIGHTS))
@pytest.mark.parametrize("d, s", [(6, 2), (7, 2), (6, 3), (8, 4)])
@pytest.mark.parametrize("h", ["abs", "square", "sqrt"])
def test_horvitz_thompson_weights_never_have_more_variance(d, s, h, weights, generator):
    W = EdgeWeights.of(WEIGHTS[weights](d, generator))
    ht = horvitz_thompson_variance(W, h_regular_inclusion_dense(W, s, h))
    assert ht <= h_regular_variance(W, s, h) * (1 + 1e-9) + 1e-9 * W.squared_norm()


def test_horvitz_thompson_beats_the_optimal_law_of_lemma_3_2(generator):
    W = EdgeWeights.of(gaussian(6, generator))
    law = Optimal(2).law(W)
    pi = torch.eye(6, dtype=torch.float64)
    for t, p in law:
        i, j = t.partition.edges().unbind(-1)
        pi[i, j] += p
        pi[j, i] += p
    assert horvitz_thompson_variance(W, pi) < 0.99 * optimal_variance(W, 2)


@pytest.mark.parametrize("n", [1, 2])
def test_an_estimated_partition_function_keeps_the_estimate_unbiased(n, generator):
    d, s = 6, 2
    W = EdgeWeights.of(heavy(d, generator))
    law = Optimal(s, num_samples=n).law(W)
    a = torch.tensor([partition_norm(W, t.partition) for t, _ in law], dtype=torch.float64)
    scale = 1 / float(edge_probability(d, s))
    mean, second = torch.zeros(d, d, dtype=torch.float64), 0.0
    for draws in product(range(len(law)), repeat=n):
        estimate_of_mean = a[list(draws)].mean().item()
        chance = len(law) ** -n
        for (t, p), a_T in zip(law, a.tolist(), strict=True):
            restricted = t.dense(W) / t.weights
            weight = scale * estimate_of_mean / a_T
            mean += chance * p * weight * restricted
            second += chance * p * (weight * restricted).square().sum().item()
    assert_close("E[estimate]", W.dense(), mean)
    exact_second = optimal_variance(W, s) + W.squared_norm()
    cv2 = (a.var(correction=0) / a.mean() ** 2).item()
    assert_close("second moment", 1.0, second / (exact_second * (1 + cv2 / n)))


@pytest.mark.parametrize("weights", sorted(WEIGHTS))
@pytest.mark.parametrize("d, s", [(6, 2), (7, 3), (8, 4)])
def test_proposals_for_the_optimal_law_are_certified(d, s, weights, generator):
    W = EdgeWeights.of(WEIGHTS[weights](d, generator))
    partitions = list(enumerate_partitions(d, s))
    norms = [partition_norm(W, T) for T in partitions]
    assert max(norms) <= certified_norm(W, s) * (1 + 1e-12)
    for T, a in zip(partitions, norms, strict=True):
        l1 = partition_weight(W, T, "abs")
        assert a <= l1 * (1 + 1e-12)
        assert a >= l1 / T.num_edges**0.5 * (1 - 1e-12)
    # The acceptance rates by which the proposal is chosen.
    accept_abs = sum(
        p * a / partition_weight(W, t.partition, "abs")
        for (t, p), a in zip(HRegular(s).law(W), [a for a in norms if a > 0], strict=True)
    )
    H = W.h_norm("abs") / 2
    mean = sum(norms) / len(norms)
    assert_close("acceptance", mean / (float(edge_probability(d, s)) * H), accept_abs)


@pytest.mark.parametrize("weights", ["gaussian", "heavy", "low_rank", "spike"])
@pytest.mark.parametrize("d, s", [(6, 2), (6, 3), (8, 2)])
def test_the_order_of_the_samplers_by_variance(d, s, weights, generator):
    W = EdgeWeights.of(WEIGHTS[weights](d, generator))
    best, by_abs = optimal_variance(W, s), h_regular_variance(W, s, "abs")
    assert best <= by_abs and best <= uniform_variance(W, s)
    assert horvitz_thompson_variance(W, h_regular_inclusion_dense(W, s)) <= by_abs
    if s == 2:
        family = heavy_matchings(W, "exact")
        optimal = exact_variance(Importance(family).law(W), W)
        assert optimal <= exact_variance(Importance(family, "abs").law(W), W) * (1 + 1e-12)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
def test_several_matchings_of_one_sweep_have_less_variance_than_independent_ones(m, generator):
    W = EdgeWeights.of(gaussian(6, generator))
    omega = W.dense()
    parts = [omega * (round_robin(6).colours == r) for r in range(5)]
    without = [
        (5 / m * sum(parts[r] for r in rounds) - omega).square().sum()
        for rounds in combinations(range(5), m)
    ]
    having = [
        (5 / m * sum(parts[r] for r in rounds) - omega).square().sum()
        for rounds in product(range(5), repeat=m)
    ]
    assert_close("without", sweep_variance(W, 5, m, replacement=False), sum(without) / len(without))
    assert_close("with", sweep_variance(W, 5, m, replacement=True), sum(having) / len(having))


def test_a_sweep_as_a_product_differs_from_the_exponential_by_the_square_of_the_step(generator):
    omega = gaussian(6, generator)
    family = round_robin(6)

    def gap(eta):
        product_of_steps = torch.eye(6, dtype=torch.float64)
        for r in range(5):
            product_of_steps = scipy_expm(eta * omega * (family.colours == r)) @ product_of_steps
        return (product_of_steps - scipy_expm(eta * omega)).norm().item()

    assert abs(gap(1e-3) / gap(5e-4) - 4.0) < 0.02


def test_squares_with_horvitz_thompson_weights_are_fragile_where_one_edge_dominates(generator):
    W = EdgeWeights.of(WEIGHTS["spike"](6, generator))
    by_square = horvitz_thompson_variance(W, h_regular_inclusion_dense(W, 2, "square"))
    by_abs = horvitz_thompson_variance(W, h_regular_inclusion_dense(W, 2, "abs"))
    assert by_square > 3 * by_abs


def test_at_d_200_nonuniform_sampling_gains_little_on_gaussian_weights(generator):
    W = EdgeWeights.of(gaussian(200, generator))
    ratio = {
        h: horvitz_thompson_variance(W, h_regular_inclusion_dense(W, 2, h)) / W.squared_norm()
        for h in ("abs", "square")
    }
    assert abs(ratio["abs"] - 196) < 1.5 and abs(ratio["square"] - 194) < 1.5  # uniform: 198


@pytest.mark.parametrize("s, from_abs, from_uniform", [(2, 0.125, 0.338), (20, 0.029, 0.477)])
def test_acceptance_for_the_optimal_law_at_d_200(s, from_abs, from_uniform, generator):
    W = EdgeWeights.of(gaussian(200, generator))
    draws = [Uniform(s).sample(W, generator=generator) for _ in range(50)]
    mean = sum(partition_norm(W, t.partition) for t in draws) / len(draws)
    assert abs(mean / certified_norm(W, s) / from_uniform - 1) < 0.05
    expected = mean / (float(edge_probability(200, s)) * W.h_norm("abs") / 2)
    assert abs(expected / from_abs - 1) < 0.05
