"""The code that draws, against the laws: exhaustively where it can be, by chi-square once."""

from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy.stats import chi2

from cases import PATTERNS, WEIGHTS, all_cases, gaussian
from helpers import assert_close
from skewflow.samplers import (
    Balanced,
    HeavyMatchings,
    HRegular,
    Optimal,
    RelabelledRoundRobin,
    RoundRobin,
    Sparsified,
    Uniform,
    _draw,
)
from skewflow.tournaments import EdgeWeights, block_sizes, partition_norm
from skewflow.tournaments.theory import certified_tau, enumerate_partitions

FALSE_ALARM = 1e-6
"""Chance that one chi-square check fails though the sampler is right; the seeds are fixed."""


def check_frequencies(draws, law):
    """Counts against probabilities; outcomes expected less than five times share one cell."""
    expected = Counter()
    for t, p in law:
        expected[t.partition.key()] += p * sum(draws.values())
    assert set(draws) <= set(expected)
    rare = [k for k, e in expected.items() if e < 5]
    cells = [(draws[k], e) for k, e in expected.items() if e >= 5]
    if rare:
        cells.append((sum(draws[k] for k in rare), sum(expected[k] for k in rare)))
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    assert statistic < chi2.isf(FALSE_ALARM, len(cells) - 1)


NAMES = [(6, 2, name) for name in all_cases(6, 2)] + [(7, 3, name) for name in all_cases(7, 3)]


@pytest.mark.parametrize("d, s, name", NAMES, ids=[f"d{d}-s{s}-{n}" for d, s, n in NAMES])
def test_frequencies_match_the_law(d, s, name, generator):
    W = EdgeWeights.of(WEIGHTS["heavy"](d, generator))
    sampler = all_cases(d, s)[name].sampler
    if isinstance(sampler, Optimal):  # the estimate of Z is drawn after T and does not change it
        sampler = Optimal(s, num_samples=1)
    count = 1500
    draws = Counter(sampler.sample(W, generator=generator).partition.key() for _ in range(count))
    check_frequencies(draws, sampler.law(W))


@pytest.mark.parametrize("method", ["reject-1", "reject-2"])
@pytest.mark.parametrize("d, s", [(6, 2), (7, 3)])
def test_rejection_frequencies_match_the_law(d, s, method, generator):
    W = EdgeWeights.of(WEIGHTS["heavy"](d, generator))
    sampler = HRegular(s, "abs", method)
    draws = Counter(sampler.sample(W, generator=generator).partition.key() for _ in range(1500))
    check_frequencies(draws, sampler.law(W))


def test_compiled_frequencies_match_the_law(generator):
    X, G = torch.eye(6, dtype=torch.float64), gaussian(6, generator)
    sampler = Balanced(2)
    draws = (sampler.sample(EdgeWeights(X, G), generator=generator) for _ in range(1500))
    check_frequencies(Counter(t.partition.key() for t in draws), sampler.law(EdgeWeights(X, G)))


@pytest.mark.parametrize("h", [None, "abs"])
def test_sparsified_frequencies_match_the_law(h, generator):
    W = EdgeWeights.of(gaussian(5, generator))
    sampler = Sparsified(3, h)
    draws = Counter(sampler.sample(W, generator=generator).partition.key() for _ in range(1500))
    check_frequencies(draws, sampler.law(W))


def drawn_samplers(d, s):
    samplers = {name: case.sampler for name, case in all_cases(d, s).items()}
    samplers |= {m: HRegular(s, "abs", m) for m in ("reject-1", "reject-2")}
    samplers["declared"] = HRegular(s, "abs", "reject-2", alpha=0.05, beta=0.05)
    samplers["balanced"] = Balanced(s, num_samples=d * (d - 1))
    samplers["rejected-ht"] = HRegular(s, "abs", "reject-1", horvitz_thompson=True)
    return samplers


_draw_numbers = Balanced._draw_numbers


def with_an_exact_second_mean(sampler, d, sizes, generator):
    """The numbers of a `Balanced` with as many samples as there are ordered pairs, each once."""
    numbers = _draw_numbers(sampler, d, sizes, generator)
    pairs, r = torch.arange(d * (d - 1)), sampler.num_samples
    return numbers._replace(edges=torch.cat([numbers.edges[:r], pairs, numbers.edges[2 * r :]]))


@pytest.mark.parametrize("d, s", [(6, 2), (7, 3)])
def test_the_estimate_that_comes_with_a_draw_is_the_law_s(d, s, monkeypatch, generator):
    W = EdgeWeights.of(gaussian(d, generator))
    exact_mean = sum(p * partition_norm(W, t.partition) for t, p in Uniform(s).law(W))
    monkeypatch.setattr(Optimal, "_mean_norm", lambda *_: exact_mean)  # Z known, as in the law
    monkeypatch.setattr(Balanced, "_draw_numbers", with_an_exact_second_mean)
    for name, sampler in drawn_samplers(d, s).items():
        by_partition = {t.partition.key(): t for t, _ in sampler.law(W)}
        for _ in range(10):
            t = sampler.sample(W, generator=generator)
            assert_close(name, by_partition[t.partition.key()].dense(W), t.dense(W))


@pytest.mark.parametrize("h", [None, "abs", "square"])
def test_the_estimate_of_a_sparsified_draw_is_one_of_the_law_s(h, generator):
    W = EdgeWeights.of(gaussian(5, generator))
    sampler = Sparsified(2, h)
    outcomes = torch.stack([t.dense(W) for t, _ in sampler.law(W)])
    for _ in range(30):
        drawn = sampler.sample(W, generator=generator).dense(W)
        assert (outcomes - drawn).abs().amax((1, 2)).min() < 1e-9


def test_the_estimated_partition_function_is_the_mean_over_uniform_draws(monkeypatch, generator):
    W = EdgeWeights.of(gaussian(5, generator))
    means = []
    for order in permutations(range(5)):
        monkeypatch.setattr(_draw, "permutation", lambda *_, o=order: torch.tensor(o))
        means.append(Optimal(2, num_samples=1)._mean_norm(W, generator))
    law = Uniform(2).law(W)
    exact = sum(p * partition_norm(W, t.partition) for t, p in law)
    assert_close("mean", exact, sum(means) / len(means))
    assert_close("mean of several", means[-1], Optimal(2, num_samples=4)._mean_norm(W, generator))


@pytest.mark.parametrize("method", ["reject-1", "reject-2"])
def test_trials_are_geometric(method, generator):
    d, s, draws = 8, 2, 3000
    W = EdgeWeights.of(gaussian(d, generator))
    tau = W.h_norm("abs") if method == "reject-1" else certified_tau(W, s)
    accept = W.h_norm("abs") / tau * (s - 1) / (d - 1)
    sampler = HRegular(s, "abs", method)
    trials = Counter(sampler.sample(W, generator=generator).trials for _ in range(draws))
    last = 20
    cells = [(trials[n], draws * accept * (1 - accept) ** (n - 1)) for n in range(1, last)]
    cells.append(
        (sum(c for n, c in trials.items() if n >= last), draws * (1 - accept) ** (last - 1))
    )
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    assert statistic < chi2.isf(FALSE_ALARM, len(cells) - 1)


def test_version_ii_on_a_balanced_omega_matches_the_law(generator):
    # Entries between 1 and 2: (alpha, beta)-balanced with beta = 1/2 and alpha = 30/36.
    upper = 1 + torch.rand(6, 6, generator=generator, dtype=torch.float64)
    W = EdgeWeights.of(upper.triu(1) - upper.triu(1).mT)
    sampler = HRegular(2, "abs", "reject-2", alpha=30 / 36, beta=0.5)
    draws = [sampler.sample(W, generator=generator) for _ in range(1500)]
    check_frequencies(Counter(t.partition.key() for t in draws), sampler.law(W))
    mean = sum(t.trials for t in draws) / len(draws)
    assert mean < 0.6 * 5  # version I needs five on average


@pytest.mark.parametrize("d, s", [(4, 2), (5, 2), (6, 2), (6, 3), (5, 3), (6, 4)])
def test_cutting_all_permutations_gives_each_partition_equally_often(d, s, monkeypatch, generator):
    W = EdgeWeights.of(gaussian(d, generator))
    seen = Counter()
    for order in permutations(range(d)):
        monkeypatch.setattr(_draw, "permutation", lambda *_, o=order: torch.tensor(o))
        seen[Uniform(s).sample(W, generator=generator).partition.key()] += 1
    assert set(seen) == {T.key() for T in enumerate_partitions(d, s)}
    assert len(set(seen.values())) == 1


@pytest.mark.parametrize("sizes", PATTERNS, ids=str)
def test_edge_completion_is_uniform_over_the_partitions_with_that_edge(sizes, monkeypatch):
    d = sum(sizes)
    counts = block_sizes(d, sizes)
    places = {group: n * s * (s - 1) for group, (s, n) in enumerate(counts)}
    orders = list(permutations(range(d - 2)))
    for i, j in [(0, 1), (1, d - 1), (d - 1, 2)]:
        chance = Counter()
        for group, weight in places.items():
            monkeypatch.setattr(_draw, "categorical", lambda *_, g=group: torch.tensor([g]))
            if weight == 0:
                continue
            for order in orders:
                monkeypatch.setattr(_draw, "permutation", lambda *_, o=order: torch.tensor(o))
                T = _draw.completion(d, counts, i, j, torch.Generator())
                chance[T.key()] += weight / sum(places.values()) / len(orders)
        with_edge = {
            T.key() for T in enumerate_partitions(d, sizes) if any({i, j} <= set(b) for b in T)
        }
        assert set(chance) == with_edge
        even = torch.full((len(chance),), 1 / len(chance), dtype=torch.float64)
        assert_close("chance", even, torch.tensor([*chance.values()], dtype=torch.float64))


@pytest.mark.parametrize("d", [4, 5, 6])
def test_relabelled_round_robin_is_uniform_at_every_step_of_a_sweep(d, monkeypatch, generator):
    W = EdgeWeights.of(gaussian(d, generator))
    rounds = d - 1 if d % 2 == 0 else d
    seen = [Counter() for _ in range(rounds)]
    for order in permutations(range(d)):
        monkeypatch.setattr(_draw, "permutation", lambda *_, o=order: torch.tensor(o))
        sampler = RelabelledRoundRobin()
        for r in range(rounds):
            seen[r][sampler.sample(W, generator=generator).partition.key()] += 1
    matchings = {T.key() for T in enumerate_partitions(d, 2)}
    for counts in seen:
        assert set(counts) == matchings
        assert len(set(counts.values())) == 1


@pytest.mark.parametrize("sampler", [RoundRobin, RelabelledRoundRobin])
@pytest.mark.parametrize("d, s", [(8, 2), (9, 2), (9, 3), (8, 8)])
def test_a_sweep_meets_every_plane_once_and_draws_one_permutation(
    sampler, d, s, monkeypatch, generator
):
    W = EdgeWeights.of(gaussian(d, generator))
    drawn = []
    permutation = _draw.permutation
    monkeypatch.setattr(_draw, "permutation", lambda *a: drawn.append(1) or permutation(*a))
    instance = sampler(block_size=s)
    for _ in range(2):
        planes = torch.zeros(d, d)
        drawn.clear()
        for _ in range(len(RoundRobin(block_size=s).law(W))):
            i, j = instance.sample(W, generator=generator).partition.edges().unbind(-1)
            planes[i, j] += 1
        assert_close("planes", torch.ones(d, d).triu(1), planes)
        assert len(drawn) == 1


@pytest.mark.parametrize(
    "make", [RoundRobin, RelabelledRoundRobin, lambda: HeavyMatchings(refresh=4)]
)
def test_a_sampler_resumes_from_its_saved_state(make, generator, tmp_path):
    omegas = [gaussian(7, generator) for _ in range(10)]

    def draw(sampler, omega):
        return sampler.sample(EdgeWeights.of(omega), generator=generator)

    sampler = make()
    for omega in omegas[:3]:
        draw(sampler, omega)
    torch.save({"s": sampler.state_dict(), "g": generator.get_state()}, tmp_path / "state.pt")
    expected = [draw(sampler, omega) for omega in omegas[3:]]
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    generator.set_state(saved["g"])
    resumed = make()
    resumed.load_state_dict(saved["s"])
    for omega, t in zip(omegas[3:], expected, strict=True):
        u = draw(resumed, omega)
        assert u.partition.key() == t.partition.key() and u.weights == t.weights


def test_the_same_generator_gives_the_same_draws(generator):
    W = EdgeWeights.of(gaussian(6, generator))
    for case in all_cases(6, 2).values():
        first, second = (
            case.sampler.sample(W, generator=torch.Generator().manual_seed(7)) for _ in range(2)
        )
        if case.sampler.state_dict():
            continue  # a sweep goes on, so its second draw is another
        assert first.partition.key() == second.partition.key()


def test_heavy_matchings_rebuild_their_family_only_when_due(monkeypatch, generator):
    from skewflow.samplers import heavy_matchings as module

    built = []
    peel = module.heavy_matchings
    monkeypatch.setattr(module, "heavy_matchings", lambda *a: built.append(1) or peel(*a))
    sampler = HeavyMatchings(refresh=3)
    counts = []
    for _ in range(7):
        sampler.sample(EdgeWeights.of(gaussian(6, generator)), generator=generator)
        counts.append(len(built))
    assert counts == [1, 1, 1, 2, 2, 2, 3]


def test_between_refreshes_the_estimate_stays_unbiased(generator):
    from skewflow.samplers import Importance
    from skewflow.tournaments import heavy_matchings

    family = heavy_matchings(EdgeWeights.of(gaussian(6, generator)))
    moved = EdgeWeights.of(gaussian(6, generator))
    law = Importance(family).law(moved)
    assert_close("E[estimate]", moved.dense(), sum(p * t.dense(moved) for t, p in law))


@pytest.mark.parametrize("weights", ["gaussian", "spike"])
def test_optimal_draws_from_either_proposal_match_the_law(weights, generator):
    W = EdgeWeights.of(WEIGHTS[weights](6, generator))
    draws = Counter(
        Optimal(2, num_samples=1).sample(W, generator=generator).partition.key()
        for _ in range(1500)
    )
    check_frequencies(draws, Optimal(2).law(W))
