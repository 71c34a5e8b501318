"""`Balanced`: what is exact about it, what it reads, and what it refuses."""

from collections import defaultdict
from itertools import permutations, product
from math import exp

import pytest
import torch
from scipy.stats import binom

from cases import gaussian, skew_from
from helpers import assert_close, randn, random_stiefel
from skewflow.errors import BalanceError
from skewflow.kernels import rotate_blocks
from skewflow.samplers import Balanced, HRegular, balanced
from skewflow.samplers.balanced import RandomNumbers, edges_of
from skewflow.tournaments import EdgeWeights, block_sizes
from skewflow.tournaments.theory import balance
from skewflow_lab.measure.flops import FlopCounter


def similar(d, generator):
    """Weights between 1 and 2 in size."""
    upper = 1 + torch.rand(d, d, generator=generator, dtype=torch.float64)
    return skew_from(upper * randn(d, d, generator=generator).sign())


def lazy(omega):
    """Weights that are computed entry by entry: X = I and G = Omega / 2."""
    return EdgeWeights(torch.eye(len(omega), dtype=omega.dtype), omega / 2)


def absolute(w):
    """h = |x| as a function, which is not compiled."""
    return w.abs()


def places(sizes):
    """Where an edge may begin, and how likely that is."""
    total = sum(count * s * (s - 1) for s, count in sizes)
    start = 0
    for s, count in sizes:
        if s > 1:
            yield start, count * s * (s - 1) / total
        start += s * count


def outcomes(sampler, omega, first):
    """Every outcome given the edges of the first mean, with its probability: (T, scale, p).

    The first accepted of many edges is e with probability q_e / sum(q), the geometric series, so
    that one edge is tried with a threshold of 0.
    """
    d, r = len(omega), sampler.num_samples
    sizes, pairs = block_sizes(d, sampler.block_size), d * (d - 1)
    accepted = omega[tuple(edges_of(torch.arange(pairs), d).unbind(-1))].abs()
    orders = list(permutations(range(d - 2)))
    for tried, rest, (place, p), second in product(
        range(pairs), orders, places(sizes), product(range(pairs), repeat=r)
    ):
        p *= accepted[tried].item() / accepted.sum().item() / len(orders) / pairs**r
        edges = torch.tensor([*first, *second, tried])
        numbers = RandomNumbers(edges, torch.zeros(1).double(), torch.tensor(rest).long(), place)
        W = lazy(omega)
        attempt = sampler._attempt_on_cpu if sampler.h == "abs" else sampler._attempt
        found = attempt(W, sizes, numbers)
        yield found.partition, found.scale, p


CASES = [
    (4, 2, 1, absolute),
    (4, 2, 1, "abs"),
    (4, 2, 2, "abs"),
    (5, 2, 1, "abs"),
    (5, 3, 1, "abs"),
]


@pytest.mark.parametrize("d, s, r, h", CASES)
def test_given_the_first_mean_the_law_is_h_regular_and_the_estimate_unbiased(d, s, r, h, generator):
    omega = similar(d, generator)
    sampler = Balanced(s, h, num_samples=r)
    exact = {t.partition.key(): p for t, p in HRegular(s).law(EdgeWeights.of(omega))}
    values = omega[tuple(torch.triu_indices(d, d, offset=1))].abs()
    noise = 1 + (values.var(correction=0) / values.mean() ** 2).item() / r
    moment = sum(
        p * t.dense(EdgeWeights.of(omega)).square().sum()
        for t, p in HRegular(s).law(EdgeWeights.of(omega))
    )
    for first in ((0,) * r, (d * (d - 1) - 1,) * r):
        law, mean, square = defaultdict(float), torch.zeros_like(omega), 0.0
        for T, scale, p in outcomes(sampler, omega, first):
            law[T.key()] += p
            for b in T.blocks:
                rows, columns = b[:, :, None], b[:, None, :]
                mean[rows, columns] += p * scale * omega[rows, columns]
                square += p * scale**2 * omega[rows, columns].square().sum().item()
        assert set(law) == set(exact)
        for key, p in exact.items():
            assert_close("p_T", p, law[key])
        assert_close("E[estimate | first mean]", omega, mean)
        assert_close("second moment", noise, square / moment.item())


@pytest.mark.parametrize("h", ["abs", absolute])
def test_an_edge_is_accepted_with_probability_h_over_the_bound(h, generator):
    d, omega = 4, similar(4, generator)
    sampler = Balanced(2, h, num_samples=1)
    attempt = sampler._attempt_on_cpu if h == "abs" else sampler._attempt
    for first, tried in product(range(12), repeat=2):
        i, j = edges_of(torch.tensor([first, tried]), d).unbind(-1)
        mean, size = omega[i, j].abs().tolist()
        q = size / (sampler.limit(d) * mean)
        for threshold, kept in ((q * (1 - 1e-9), True), (q * (1 + 1e-9), False)):
            numbers = RandomNumbers(
                torch.tensor([first, 0, tried]),
                torch.tensor([threshold], dtype=torch.float64),
                torch.tensor([1, 0]),
                0,
            )
            found = attempt(lazy(omega), block_sizes(d, 2), numbers)
            assert (found.partition is not None) is kept


def test_ordered_pairs_are_numbered_once_each():
    pairs = {tuple(pair) for pair in edges_of(torch.arange(30), 6).tolist()}
    assert pairs == {(i, j) for i in range(6) for j in range(6) if i != j}


@pytest.mark.parametrize("d, k, s", [(2, 2, 2), (5, 3, 2), (9, 9, 3), (33, 17, 8), (64, 64, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_compiled_draws_are_the_plain_ones(d, k, s, dtype, generator):
    X = random_stiefel(d, k, generator=generator, dtype=dtype)
    G = randn(d, k, generator=generator, dtype=dtype)
    sides = ("left", "right") if d == k else ("left",)
    for seed, side in product(range(5), sides):
        W, V = EdgeWeights(X, G, side), EdgeWeights(X, G, side)
        t = Balanced(s).sample(W, generator=torch.Generator().manual_seed(seed))
        u = Balanced(s, absolute).sample(V, generator=torch.Generator().manual_seed(seed))
        assert t.partition.key() == u.partition.key() and t.trials == u.trials
        assert_close("estimate", u.dense(V), t.dense(W), dtype)
        fresh = EdgeWeights(X, G, side)
        for kept, computed in zip(W.blocks(t.partition), fresh.blocks(t.partition), strict=True):
            assert_close("blocks", computed, kept, dtype)


@pytest.mark.parametrize("h", ["abs", absolute])
def test_weights_of_zero_are_drawn_uniformly_and_estimated_by_zero(h, generator):
    W = lazy(torch.zeros(6, 6, dtype=torch.float64))
    t = Balanced(2, h).sample(W, generator=generator)
    assert t.weights == 5.0
    assert_close("estimate", torch.zeros(6, 6), t.dense(W))


def spiked(d):
    omega = torch.full((d, d), 0.01, dtype=torch.float64).triu(1)
    omega[0, 1] = 5.0
    return omega - omega.mT


MESSAGE = (
    r"with alpha=0.1 and beta=0.1 no h may exceed \d+ times its mean: got \d+\.?\d* times. "
    r"Lower alpha or beta, or use HRegular"
)


@pytest.mark.bad_input
@pytest.mark.parametrize("where", ["first mean", "trial", "second mean", "partition"])
@pytest.mark.parametrize("h", ["abs", absolute])
def test_an_entry_above_the_bound_is_refused_wherever_it_is_read(where, h):
    # The numbers 0, 1 and 8 are the edges (0, 1), which is heavy, (0, 2) and (2, 3). The last one
    # is completed by (0, 1).
    edges = {
        "first mean": [1] * 299 + [0] + [1] * 301,
        "trial": [1] * 600 + [0],
        "second mean": [1] * 300 + [0] * 300 + [1],
        "partition": [1] * 600 + [8],
    }[where]
    omega = spiked(4)
    if where == "first mean":  # then it alone makes the mean
        omega[omega.abs() < 1] = 0
    sampler = Balanced(2, h, num_samples=300)
    attempt = sampler._attempt_on_cpu if h == "abs" else sampler._attempt
    threshold = torch.zeros(1, dtype=torch.float64)
    numbers = RandomNumbers(torch.tensor(edges), threshold, torch.tensor([0, 1]), 0)
    with pytest.raises(BalanceError, match=MESSAGE):
        attempt(lazy(omega), block_sizes(4, 2), numbers)


@pytest.mark.bad_input
def test_weights_that_are_not_balanced_are_refused_in_a_few_draws(generator):
    omega = skew_from(gaussian(200, generator).square().mul(8).exp())
    assert balance(EdgeWeights.of(omega), 0.1) < 1e-3
    with pytest.raises(BalanceError, match="no h may exceed 200 times its mean"):
        for _ in range(20):
            Balanced(2).sample(lazy(omega), generator=generator)


@pytest.mark.bad_input
def test_the_law_of_weights_that_are_not_balanced_is_refused():
    omega = torch.zeros(20, 20, dtype=torch.float64)
    omega[0, 1], omega[1, 0] = 1.0, -1.0
    with pytest.raises(BalanceError, match=r"may exceed 100 times its mean: got 200 times"):
        Balanced(2).law(EdgeWeights.of(omega))


@pytest.mark.bad_input
@pytest.mark.parametrize("h", ["abs", absolute])
def test_a_draw_that_accepts_nothing_gives_up_with_the_numbers(h, generator, monkeypatch):
    draw = Balanced._draw_numbers

    def never(self, d, sizes, generator):
        numbers = draw(self, d, sizes, generator)
        return numbers._replace(thresholds=torch.ones_like(numbers.thresholds))

    monkeypatch.setattr(Balanced, "_draw_numbers", never)
    with pytest.raises(BalanceError, match=r"about 200 trials find an edge: got none in 8000, so"):
        Balanced(2, h).sample(lazy(similar(20, generator)), generator=generator)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "options, message",
    [
        ({"alpha": 0.0}, r"`alpha` and `beta` must lie in \(0, 1\]: got 0.0 and 0.1"),
        ({"beta": 1.5}, r"must lie in \(0, 1\]: got 0.1 and 1.5"),
        ({"num_samples": 0}, "`num_samples` must be a whole number of at least 1: got 0"),
        ({"h": "cube"}, "`h` must be a function or one of"),
    ],
)
def test_options_out_of_range_are_refused_when_the_sampler_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        Balanced(2, **options)


def test_the_first_mean_falls_below_half_as_rarely_as_chernoff_says():
    # A fraction p of the entries has the largest h and the others 0: balanced with alpha beta = p.
    for p, r in product((0.01, 0.1, 0.5), (16, 128, 1024)):
        assert binom.cdf(r * p / balanced.MARGIN, r, p) <= exp(-p * r / 8) or r * p < 1


SIZES_OF_COST = (64, 128, 256, 512)


def exponent(values):
    """The slope of log values over log d, by least squares."""
    x = torch.tensor(SIZES_OF_COST, dtype=torch.float64).log()
    y = torch.tensor(values, dtype=torch.float64).log()
    return (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item()


@pytest.mark.parametrize("s", [2, 4])
def test_entries_grow_with_d_and_operations_with_its_square(s, generator):
    entries, operations, sampler = [], [], Balanced(s, absolute)
    for d in SIZES_OF_COST:
        X = random_stiefel(d, d, generator=generator, dtype=torch.float32)
        G = randn(d, d, generator=generator, dtype=torch.float32)
        read, counted, draws = 0, 0, 5
        for _ in range(draws):
            W = EdgeWeights(X, G)
            with FlopCounter() as counter:
                t = sampler.sample(W, generator=generator)
                rotate_blocks(X, t.partition, t.blocks(W), -1e-3)
            read, counted = read + W.evaluated, counted + counter.total
        entries.append(read / draws)
        operations.append(counted / draws)
    assert exponent(entries) < 1.2
    assert exponent(operations) < 2.2


@pytest.mark.parametrize("s", [2, 3, 8])
def test_the_entries_read_have_the_mean_of_the_docstring(s, generator):
    d, draws = 120, 400
    X = random_stiefel(d, 6, generator=generator)
    G = randn(d, 6, generator=generator)
    read = 0
    for _ in range(draws):
        W = EdgeWeights(X, G)
        t = Balanced(s, num_samples=50).sample(W, generator=generator)
        t.blocks(W)
        read += W.evaluated
    expected = 2 * 50 + 2 / 0.01 + t.partition.num_edges
    # The trials are geometric: their standard deviation is their mean, 200. The noise of the first
    # mean adds a little to it.
    assert abs(read / draws - expected) < 5 * 220 / draws**0.5 + 10


def test_half_precision_weights_are_drawn(generator):
    X = torch.eye(32, dtype=torch.bfloat16)
    G = randn(32, 32, generator=generator).to(torch.bfloat16)
    W = EdgeWeights(X, G)
    t = Balanced(2).sample(W, generator=generator)
    assert torch.isfinite(t.dense(W)).all()
