"""The paper's claims on estimators (Sec. 3, 4, 9.5-9.7), each by enumeration at small d."""

from itertools import combinations, product
from math import exp, log

import pytest
import torch

from cases import (
    PATTERNS,
    SIZES,
    WEIGHTS,
    gaussian,
    heavy,
    one_factorisations_of_k6,
    skew_from,
)
from helpers import assert_close, randn, random_skew, scipy_expm
from skewflow.geometry import basis
from skewflow.kernels import rotate_blocks
from skewflow.samplers import HRegular, Importance, Uniform
from skewflow.tournaments import (
    EdgeWeights,
    Family,
    Partition,
    block_sizes,
    edge_probability,
    family_sums,
    heavy_matchings,
    partition_norm,
    partition_weight,
    round_robin,
)
from skewflow.tournaments.theory import (
    balance,
    balanced_tau_ratio,
    certified_tau,
    covering_estimate,
    covering_matrix,
    enumerate_partitions,
    exact_variance,
    family_h_variance,
    gamma,
    h_regular_variance,
    num_partitions,
    num_partitions_with_edge,
    optimal_probabilities,
    optimal_variance,
    rho,
    tau_star,
    uniform_variance,
)

EVEN = [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (9, 3)]

pytestmark = pytest.mark.many_calls


def uneven_cover(d, generator):
    """A covering family that is not homogeneous: all pairs with the rest, and three of T_3."""
    pairs = [
        Partition.of([[i, j], [r for r in range(d) if r not in (i, j)]])
        for i, j in combinations(range(d), 2)
    ]
    return pairs + list(enumerate_partitions(d, 3))[:3]


def test_any_law_on_a_covering_family_is_unbiased_with_the_weights_of_eq_6(generator):
    W = EdgeWeights.of(gaussian(6, generator))
    for family in (uneven_cover(6, generator), list(enumerate_partitions(6, 2))):
        M = covering_matrix(family)
        p = torch.rand(len(family), generator=generator, dtype=torch.float64) + 0.1
        p = (p / p.sum()).tolist()
        mean = sum(q * covering_estimate(T, q, M).dense(W) for T, q in zip(family, p, strict=True))
        assert_close("E[estimate]", W.dense(), mean)


def test_t_s_and_non_intersecting_families_are_homogeneous():
    off = ~torch.eye(6, dtype=torch.bool)
    ways = num_partitions_with_edge(6, 3)
    M = covering_matrix([*enumerate_partitions(6, 3)])[off]
    assert_close("T_3", torch.full_like(M, 1 / ways), M)
    assert_close("round robin", torch.ones(30), covering_matrix([*round_robin(6)])[off])


def test_the_update_is_biased_by_the_square_of_the_step(generator):
    omega = gaussian(6, generator)
    W = EdgeWeights.of(omega)
    law = Uniform(2).law(W)

    def bias(eta):
        mean = sum(p * scipy_expm(eta * t.dense(W)) for t, p in law)
        return (mean - scipy_expm(eta * omega)).norm().item()

    assert abs(bias(1e-3) / bias(5e-4) - 4.0) < 0.02


@pytest.mark.parametrize("d, s", SIZES)
def test_block_exponentials_commute_and_multiply_to_the_exponential_of_the_estimate(
    d, s, generator
):
    W = EdgeWeights.of(gaussian(d, generator))
    X = randn(d, 3, generator=generator)
    t = Uniform(s).sample(W, generator=generator)
    Y = rotate_blocks(X, t.partition, t.blocks(W), eta=0.1)
    assert_close("update", scipy_expm(0.1 * t.dense(W)) @ X, Y)


@pytest.mark.parametrize("d, s", EVEN)
def test_counts_of_t_s_match_enumeration_and_the_closed_forms(d, s):
    from math import factorial as f

    members = list(enumerate_partitions(d, s))
    assert len({T.key() for T in members}) == len(members) == num_partitions(d, s)
    l = d // s
    assert num_partitions(d, s) == f(d) // (f(s) ** l * f(l))
    W_formula = f(d - 2) // (f(s - 2) * f(s) ** (l - 1) * f(l - 1))
    holding = sum(any({0, d - 1} <= set(b) for b in T) for T in members)
    assert num_partitions_with_edge(d, s) == W_formula == holding
    assert num_partitions(d, s) * (s - 1) == num_partitions_with_edge(d, s) * (d - 1)


@pytest.mark.parametrize("d, s", EVEN)
def test_uniform_weight_and_variance_are_those_of_the_paper_when_s_divides_d(d, s, generator):
    W = EdgeWeights.of(gaussian(d, generator))
    law = Uniform(s).law(W)
    assert_close("weight", (d - 1) / (s - 1), law[0][0].weights)
    assert_close("variance", (d - s) / (s - 1) * W.squared_norm(), exact_variance(law, W))


@pytest.mark.parametrize(
    "sizes, probability",
    [
        ((2, 2, 1), "1/5"),
        ((3, 3, 1), "2/7"),
        ((3, 2, 2), "5/21"),
        ((3, 3, 2), "1/4"),
        ((4, 3), "3/7"),
    ],
)
def test_uneven_blocks_need_the_inverse_edge_probability_as_weight(sizes, probability, generator):
    d = sum(sizes)
    assert str(edge_probability(d, sizes)) == probability
    W = EdgeWeights.of(gaussian(d, generator))
    law = Uniform(sizes).law(W)
    assert_close("E[estimate]", W.dense(), sum(p * t.dense(W) for t, p in law))
    assert_close("variance", uniform_variance(W, sizes), exact_variance(law, W))
    # The paper's (d-1)/(s-1) shrinks the mean.
    shrink = (d - 1) / (sizes[0] - 1) * float(edge_probability(d, sizes))
    assert 0.70 < shrink < 0.88


@pytest.mark.parametrize("d, s", [(6, 2), (6, 3), (7, 3)])
def test_no_law_with_the_weights_of_eq_6_beats_the_optimal_one(d, s, generator):
    W = EdgeWeights.of(heavy(d, generator))
    family = list(enumerate_partitions(d, s))
    M = covering_matrix(family)
    best = optimal_probabilities(family, W)
    squares = torch.tensor([covering_estimate(T, 1.0, M).dense(W).square().sum() for T in family])

    def variance(p):
        return (squares / p).sum().item() - W.squared_norm()

    assert_close("variance", optimal_variance(W, s), variance(best))
    for _ in range(500):
        p = best * (0.3 * randn(len(family), generator=generator)).exp()
        assert variance(p / p.sum()) > variance(best)


def test_lemma_3_2_holds_on_a_family_that_is_not_homogeneous(generator):
    W = EdgeWeights.of(heavy(6, generator))
    family = uneven_cover(6, generator)
    M, best = covering_matrix(family), optimal_probabilities(family, W)
    squares = torch.tensor([covering_estimate(T, 1.0, M).dense(W).square().sum() for T in family])
    norms = (squares / 2).sqrt()
    assert_close("p", norms / norms.sum(), best)
    for _ in range(500):
        p = best * (0.3 * randn(len(family), generator=generator)).exp()
        p = p / p.sum()
        assert (squares / p).sum() > (squares / best).sum()


@pytest.mark.parametrize("sizes", PATTERNS, ids=str)
@pytest.mark.parametrize("h", ["abs", "square", "sqrt"])
def test_h_regular_probability_is_that_of_lemma_3_5_and_at_most_one_over_w(sizes, h, generator):
    d = sum(sizes)
    W = EdgeWeights.of(gaussian(d, generator))
    ways = num_partitions_with_edge(d, sizes)
    weights = [partition_weight(W, T, h) for T in enumerate_partitions(d, sizes)]
    for (_, p), weight in zip(HRegular(sizes, h).law(W), weights, strict=True):
        assert_close("p", weight / sum(weights), p)
        assert p <= 1 / ways


def acceptance(W, s, tau, h="abs"):
    return [2 * partition_weight(W, T, h) / tau for T in enumerate_partitions(W.d, s)]


@pytest.mark.parametrize("d, s", [(6, 2), (6, 3), (7, 2), (7, 3)])
@pytest.mark.parametrize("weights", ["gaussian", "spike"])
def test_version_i_accepts_with_probability_at_most_one_and_has_the_h_regular_law(
    d, s, weights, generator
):
    W = EdgeWeights.of(WEIGHTS[weights](d, generator))
    q = acceptance(W, s, W.h_norm("abs"))
    assert max(q) <= 1
    law = torch.tensor([p for _, p in HRegular(s).law(W)], dtype=torch.float64)
    assert_close("law", law, torch.tensor(q, dtype=torch.float64) / sum(q))


@pytest.mark.parametrize("factor", [1.0, 0.8])
def test_trials_are_geometric_with_mean_n_over_lambda_and_not_poisson(factor, generator):
    d, s = 6, 2
    W = EdgeWeights.of(gaussian(d, generator))
    tau = factor * W.h_norm("abs")
    q = acceptance(W, s, tau)
    accept = sum(q) / num_partitions(d, s)
    lam = num_partitions_with_edge(d, s) * W.h_norm("abs") / tau
    assert_close("acceptance", lam / num_partitions(d, s), accept)
    assert_close("mean trials", (d - 1) / (s - 1) * factor, 1 / accept)
    geometric_mean = sum(n * accept * (1 - accept) ** (n - 1) for n in range(1, 2000))
    assert_close("geometric", 1 / accept, geometric_mean)
    variance = sum((n - 1 / accept) ** 2 * accept * (1 - accept) ** (n - 1) for n in range(1, 2000))
    assert_close("geometric variance", (1 - accept) / accept**2, variance)
    assert abs(variance * accept - 1) > 0.1  # a Poisson count would have its mean as variance


def test_sampled_trials_of_version_i_have_the_predicted_mean(generator):
    d, s, draws = 8, 2, 2000
    W = EdgeWeights.of(gaussian(d, generator))
    sampler = HRegular(s, method="reject-1")
    trials = [sampler.sample(W, generator=generator).trials for _ in range(draws)]
    assert min(trials) >= 1
    mean = (d - 1) / (s - 1)
    spread = (mean * (mean - 1) / draws) ** 0.5  # of the mean of geometric counts
    assert abs(sum(trials) / draws - mean) < 5 * spread  # chance of a false alarm below 1e-6


@pytest.mark.parametrize("d, s", [(6, 2), (6, 3), (8, 4)])
def test_version_i_reads_on_average_the_whole_triangle(d, s, generator):
    W = EdgeWeights.of(gaussian(d, generator))
    trials = num_partitions(d, s) / sum(acceptance(W, s, W.h_norm("abs")))
    edges = d * (s - 1) / 2
    assert_close("entries", d * (d - 1) / 2, trials * edges)


@pytest.mark.parametrize("d, s", [(6, 2), (6, 3), (8, 2), (8, 4), (7, 3)])
def test_a_balanced_omega_obeys_the_tau_bound(d, s, generator):
    worst = 0.0
    for draw in range(20):
        W = EdgeWeights.of((gaussian if draw % 2 else heavy)(d, generator))
        for beta in (0.1, 0.5, 1.0):
            alpha = balance(W, beta)
            tau = balanced_tau_ratio(d, s, alpha, beta) * W.h_norm("abs")
            assert tau_star(W, s) <= tau * (1 + 1e-12)
            assert tau <= max(s / (d * alpha * beta), 1.0) * W.h_norm("abs") * (1 + 1e-12)
            worst = max(worst, tau_star(W, s) / tau)
    assert worst > 0.1


def spiked(d=8):
    omega = 0.01 * torch.ones(d, d, dtype=torch.float64)
    omega[0, 1] = 3.0
    return skew_from(omega)


def test_clipping_version_ii_on_an_unbalanced_omega_is_biased():
    W = EdgeWeights.of(spiked())
    tau = balanced_tau_ratio(8, 2, 0.8, 0.8) * W.h_norm("abs")
    q = acceptance(W, 2, tau)
    assert max(q) > 1.5
    clipped = torch.tensor([min(1.0, x) for x in q], dtype=torch.float64)
    law = HRegular(2).law(W)
    mean = sum(
        p * t.dense(W) for (t, _), p in zip(law, (clipped / clipped.sum()).tolist(), strict=True)
    )
    assert (mean - W.dense()).norm() / W.dense().norm() > 0.1


@pytest.mark.parametrize("d, s", [(6, 2), (6, 3), (7, 2), (7, 3), (8, 4)])
@pytest.mark.parametrize("weights", sorted(WEIGHTS))
@pytest.mark.parametrize("h", ["abs", "square"])
def test_the_certified_tau_bounds_tau_star_whatever_omega_is(d, s, weights, h, generator):
    W = EdgeWeights.of(WEIGHTS[weights](d, generator))
    assert tau_star(W, s, h) <= certified_tau(W, s, h) * (1 + 1e-12)
    assert certified_tau(W, s, h) <= W.h_norm(h) * (1 + 1e-12)


def test_raising_tau_on_a_violation_and_going_on_is_not_exact():
    # Start from tau; a T with q > 1 raises tau to its own 2h(G_T), and drawing goes on. Here there
    # are two kinds of T, with the spike and without, so the law is an exact two-state recursion.
    W = EdgeWeights.of(spiked())
    weights = [2 * partition_weight(W, T) for T in enumerate_partitions(8, 2)]
    light, heavy_one = min(weights), max(weights)
    share = sum(w > (light + heavy_one) / 2 for w in weights) / len(weights)
    tau = balanced_tau_ratio(8, 2, 0.8, 0.8) * W.h_norm("abs")
    assert light < tau < heavy_one
    accept_light = (1 - share) * light / tau
    ended_before = accept_light / (accept_light + share)  # accepted before tau was raised
    p_heavy = share * heavy_one / (share * heavy_one + (1 - share) * light)
    distance = ended_before * p_heavy  # total variation: until then no heavy T comes out
    assert 0.2 < distance < 0.4


def test_two_acceptance_times_give_an_unbiased_clipping_constant():
    for A in (0.05, 0.3, 0.9):
        # K1 + K2 - 1 = n has probability n A^2 (1-A)^(n-1).
        mean = sum(n * A**2 * (1 - A) ** (n - 1) / n for n in range(1, 3000))
        assert_close("E[1/(K1+K2-1)]", A, mean)
        second = sum(n * A**2 * (1 - A) ** (n - 1) / n**2 for n in range(1, 3000))
        assert_close("second moment", -log(A) / (1 - A), second / A**2)


def bernoulli_norm(values, r):
    """Every outcome of the Monte-Carlo norm and its probability; `values` is h on the triangle."""
    n = len(values)
    for keep in product((0, 1), repeat=n):
        count = sum(keep)
        p = (r / n) ** count * (1 - r / n) ** (n - count)
        yield 2 * n / r * sum(v for v, k in zip(values, keep, strict=True) if k), p


def test_monte_carlo_norm_is_unbiased_with_the_factor_two_and_obeys_its_tail_bound(generator):
    d, r = 5, 4
    W = EdgeWeights.of(gaussian(d, generator))
    i, j = torch.triu_indices(d, d, offset=1)
    values = W.dense()[i, j].abs().tolist()
    norm, n = W.h_norm("abs"), len(values)
    outcomes = list(bernoulli_norm(values, r))
    assert_close("mean", norm, sum(x * p for x, p in outcomes))
    for eps in (0.2, 0.5, 1.0, 1.5):
        tail = sum(p for x, p in outcomes if x - norm > eps * norm)
        azuma = exp(-((eps * norm) ** 2) / (2 * 4 * (n / r) ** 2 * sum(v * v for v in values)))
        alpha, beta = balance(W, 0.5), 0.5
        assert tail <= azuma <= exp(-((eps * alpha * beta * r / (3 * d)) ** 2))


def test_monte_carlo_norm_keeps_each_edge_with_the_right_probability(generator):
    d, r, draws = 6, 5, 4000
    W = EdgeWeights.of(gaussian(d, generator))
    estimates = torch.tensor(
        [W.h_norm("abs", num_samples=r, generator=generator) for _ in range(draws)]
    )
    i, j = torch.triu_indices(d, d, offset=1)
    values, n = W.dense()[i, j].abs(), 15
    variance = 4 * ((n / r - 1) * values.square()).sum().item()
    assert abs(estimates.mean().item() - W.h_norm("abs")) < 5 * (variance / draws) ** 0.5
    assert abs(estimates.var().item() / variance - 1) < 0.2


def test_monte_carlo_norm_reads_about_as_many_entries_as_asked(generator):
    X, G = randn(400, 3, generator=generator), randn(400, 3, generator=generator)
    W = EdgeWeights(X, G)
    W.h_norm("abs", num_samples=1000, generator=generator)
    assert abs(W.evaluated - 1000) < 5 * 1000**0.5
    W.h_norm("abs", num_samples=79_000, generator=generator)  # nearly all of the 79,800
    exact = EdgeWeights(X, G).h_norm("abs")
    assert abs(W.h_norm("abs", num_samples=79_800, generator=generator) / exact - 1) < 1e-12


@pytest.mark.parametrize("d, s", SIZES)
def test_squares_buy_nothing_over_uniform(d, s, generator):
    W = EdgeWeights.of(heavy(d, generator))
    size = W.squared_norm()
    assert_close("var", uniform_variance(W, s) / size, h_regular_variance(W, s, "square") / size)


def test_squares_gain_only_by_never_drawing_partitions_of_zero_weight():
    omega = torch.tensor([[0.0, 5, 1, 0], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 0]])
    W = EdgeWeights.of(skew_from(omega.double()))
    assert min(partition_weight(W, T) for T in enumerate_partitions(4, 2)) == 0
    assert h_regular_variance(W, 2, "square") < uniform_variance(W, 2)


def test_abs_can_be_worse_than_uniform():
    omega = torch.zeros(4, 4, dtype=torch.float64)
    for (i, j), w in {(0, 1): 10.0, (0, 2): 6.0, (1, 3): 6.0, (0, 3): 6.0, (1, 2): 6.0}.items():
        omega[i, j] = w
    W = EdgeWeights.of(skew_from(omega))
    size = W.squared_norm()
    assert_close("uniform", 1464.0, uniform_variance(W, 2) + size)
    assert_close("abs", 1496.0, h_regular_variance(W, 2, "abs") + size)


def test_an_h_that_vanishes_off_zero_would_be_biased(generator):
    # Why `weight_function` refuses it: partitions of weight zero are never drawn.
    W = EdgeWeights.of(gaussian(4, generator))

    def cut(w):
        return (w.abs() - 1.0).clamp(min=0.0)

    partitions = list(enumerate_partitions(4, 2))
    weights = [sum(cut(o).sum().item() for o in W.blocks(T)) / 2 for T in partitions]
    assert min(weights) == 0.0
    H = sum(weights) / num_partitions_with_edge(4, 2)
    mean = torch.zeros(4, 4, dtype=torch.float64)
    for T, weight in zip(partitions, weights, strict=True):
        if weight > 0:
            estimate = covering_estimate(T, 1.0, torch.ones(4, 4)).dense(W) * H / weight
            mean += weight / sum(weights) * estimate
    assert (mean - W.dense()).abs().max() > 0.1


def test_variance_on_matchings_has_the_factor_two(generator):
    W = EdgeWeights.of(gaussian(6, generator))
    family = round_robin(6)
    K_T = family_sums(W, family, "abs")
    i, j = torch.triu_indices(6, 6, offset=1)
    w = W.dense()[i, j]
    ours = 2 * K_T.sum() * (w.square() / K_T[family.colours[i, j]]).sum() - W.squared_norm()
    assert_close("formula", ours, family_h_variance(W, family, "abs"))
    assert_close("exact", ours, exact_variance(Importance(family, "abs").law(W), W))


def single_edges(d):
    return Family(
        Partition.of([[i, j], *[[r] for r in range(d) if r not in (i, j)]])
        for i, j in combinations(range(d), 2)
    )


def test_single_edges_have_the_largest_variance_and_a_full_matching_none(generator):
    W = EdgeWeights.of(gaussian(6, generator))
    i, j = torch.triu_indices(6, 6, offset=1)
    K = W.dense()[i, j].abs().sum().item()
    largest = 2 * K**2 - W.squared_norm()
    assert_close("single edges", largest, family_h_variance(W, single_edges(6)))
    for T in one_factorisations_of_k6():
        assert family_h_variance(W, Family(Partition.of([*m]) for m in T)) < largest
    matching = EdgeWeights.of(basis(6, 0, 1).double() + 2 * basis(6, 2, 5).double())
    assert_close("one matching", 0.0, family_h_variance(matching, heavy_matchings(matching)))


def test_k6_has_six_one_factorisations():
    assert len(one_factorisations_of_k6()) == 6


def test_iterated_maximum_matching_is_not_optimal(generator):
    factorisations = [Family(Partition.of([*m]) for m in T) for T in one_factorisations_of_k6()]
    beaten = 0
    for _ in range(30):
        W = EdgeWeights.of(gaussian(6, generator))
        greedy = family_h_variance(W, heavy_matchings(W, "exact"))
        beaten += any(
            family_h_variance(W, family) < greedy * (1 - 1e-9) for family in factorisations
        )
    assert 0 < beaten < 30


def test_at_d_4_iterated_maximum_matching_is_the_unique_factorisation(generator):
    W = EdgeWeights.of(gaussian(4, generator))
    keys = {T.key() for T in heavy_matchings(W, "exact")}
    assert keys == {T.key() for T in round_robin(4)}


def test_with_unit_weights_the_objective_is_the_number_of_matchings():
    # The reduction of Lemma 9.8: minimising it is finding the chromatic index.
    W = EdgeWeights.of(skew_from(torch.ones(6, 6, dtype=torch.float64)))
    i, j = torch.triu_indices(6, 6, offset=1)
    for family in (round_robin(6), single_edges(6)):
        K_e = family_sums(W, family, "abs")[family.colours[i, j]]
        assert_close("sum 1/K(e)", float(len(family)), (1 / K_e).sum())


def test_the_printed_gamma_can_be_half_of_tau_star():
    W = EdgeWeights.of(basis(4, 0, 1).double() + basis(4, 2, 3).double())
    flat = W.dense().abs().flatten().sort(descending=True).values
    printed = flat[: 4 // 2 * 1].sum().item()  # (d/s) C(s,2) = 2 entries of the full matrix
    assert printed == tau_star(W, 2) / 2
    assert gamma(W, 2) == tau_star(W, 2)


@pytest.mark.parametrize(
    "s, value", [(2, 51.1), (4, 19.2), (5, 14.9), (10, 7.4), (20, 4.0), (25, 3.4), (50, 2.0)]
)
def test_rho_of_a_gaussian_omega_is_about_half_of_d_over_s_or_less(s, value):
    W = EdgeWeights.of(random_skew(200, generator=torch.Generator().manual_seed(1)))
    assert abs(rho(W, s) / value - 1) < 0.03
    assert rho(W, s) < 0.6 * 200 / s


@pytest.mark.parametrize("d, s", [(6, 2), (7, 3), (8, 4)])
def test_gamma_bounds_tau_star(d, s, generator):
    W = EdgeWeights.of(heavy(d, generator))
    assert tau_star(W, s) <= gamma(W, s) * (1 + 1e-12)
    assert partition_norm(W, next(enumerate_partitions(d, s))) > 0


def test_block_sizes_differ_by_at_most_one():
    for d in range(2, 60):
        for s in range(2, d + 1):
            counts = block_sizes(d, s)
            sizes = [size for size, count in counts for _ in range(count)]
            assert sum(sizes) == d and len(sizes) == -(-d // s)
            assert max(sizes) - min(sizes) <= 1 and max(sizes) <= s
