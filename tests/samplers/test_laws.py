"""Every sampler's law, by enumeration: probabilities, mean and variance."""

import pytest
import torch

from cases import SIZES, WEIGHTS, all_cases
from helpers import EPS, assert_close, random_stiefel
from skewflow.samplers import HRegular, Sparsified, Uniform
from skewflow.tournaments import EdgeWeights
from skewflow.tournaments.theory import exact_variance


def check_law(name, case, W, factor=1.0):
    law = case.sampler.law(W)
    omega = W.dense()
    assert all(p > 0 for _, p in law), name
    assert_close(f"{name}: sum of probabilities", 1.0, sum(p for _, p in law))
    mean = sum(p * t.dense(W) for t, p in law)
    assert_close(f"{name}: E[estimate]", omega, mean, factor=factor)
    # Relative to ||Omega||^2: the variance is a difference of numbers of that size.
    size = W.squared_norm()
    exact = exact_variance(law, W)
    assert_close(f"{name}: variance", case.variance(W) / size, exact / size, factor=factor)


@pytest.mark.parametrize("d, s", SIZES)
def test_laws_sum_to_one_are_unbiased_and_have_the_variance_of_their_formula(d, s, generator):
    W = EdgeWeights.of(WEIGHTS["gaussian"](d, generator))
    for name, case in all_cases(d, s).items():
        check_law(name, case, W)


@pytest.mark.parametrize("weights", ["heavy", "low_rank", "spike", "sparse"])
@pytest.mark.parametrize("d, s", [(6, 2), (7, 3), (5, 2), (9, 3)])
def test_every_law_holds_on_uneven_weights_too(d, s, weights, generator):
    W = EdgeWeights.of(WEIGHTS[weights](d, generator))
    for name, case in all_cases(d, s).items():
        # A Horvitz-Thompson probability is a difference of row sums of h: it loses as many digits
        # as h spans, and on the spike that is many.
        cancels = weights == "spike" and name.startswith("horvitz_thompson")
        check_law(name, case, W, factor=1e3 if cancels else 1.0)


@pytest.mark.parametrize("d, s", [(6, 2), (7, 3)])
def test_laws_of_a_lazy_view_are_those_of_its_table(d, s, generator):
    X = torch.randn(d, 3, generator=generator, dtype=torch.float64)
    G = torch.randn(d, 3, generator=generator, dtype=torch.float64)
    table = EdgeWeights.of(EdgeWeights(X, G).dense())
    for case in all_cases(d, s).values():
        lazy = EdgeWeights(X, G)
        for (t, p), (u, q) in zip(case.sampler.law(lazy), case.sampler.law(table), strict=True):
            assert t.partition.key() == u.partition.key()
            assert_close("probability", q, p)
            assert_close("estimate", u.dense(table), t.dense(lazy))


@pytest.mark.parametrize("h", [None, "abs", "square"])
@pytest.mark.parametrize("d, r", [(4, 3), (5, 3), (6, 2), (7, 2), (8, 2), (9, 1)])
@pytest.mark.parametrize("weights", ["gaussian", "sparse"])
def test_sparsified_law_is_unbiased(d, r, h, weights, generator):
    W = EdgeWeights.of(WEIGHTS[weights](d, generator))
    law = Sparsified(r, h).law(W)
    assert_close("sum of probabilities", 1.0, sum(p for _, p in law))
    assert_close("E[estimate]", W.dense(), sum(p * t.dense(W) for t, p in law))


@pytest.mark.parametrize("h", [None, "abs", "square"])
@pytest.mark.parametrize("d", [4, 7])
def test_sparsified_to_one_edge_has_the_variance_of_importance_sampling(d, h, generator):
    W = EdgeWeights.of(WEIGHTS["gaussian"](d, generator))
    omega = W.dense()
    i, j = torch.triu_indices(d, d, offset=1)
    w = omega[i, j]
    weight = {None: torch.ones_like(w), "abs": w.abs(), "square": w.square()}[h]
    formula = 2 * (w.square() / (weight / weight.sum())).sum() - omega.square().sum()
    assert_close("variance", formula, exact_variance(Sparsified(1, h).law(W), W))


@pytest.mark.parametrize("d", [4, 5, 6, 7, 8])
def test_sparsified_variance_is_that_of_the_sparsification_plus_that_of_the_matching(d, generator):
    W = EdgeWeights.of(WEIGHTS["gaussian"](d, generator))
    i, j = torch.triu_indices(d, d, offset=1)
    w, n, r = W.dense()[i, j], d * (d - 1) // 2, 2
    sparsification = (2 * (n * w.square()).sum() - W.squared_norm()) / r
    matching = 0.0
    for a in range(n):
        for b in range(n):
            v = torch.zeros(n, dtype=torch.float64)
            v[a] += n / r * w[a]
            v[b] += n / r * w[b]
            share_a_row = {int(i[a]), int(j[a])} & {int(i[b]), int(j[b])}
            one_norm = (v[a].abs() + v[b].abs()) ** 2
            if share_a_row and a != b:  # two matchings of one edge each
                matching += 2 * (one_norm - v.square().sum()).item() / n**2
    assert_close("variance", sparsification + matching, exact_variance(Sparsified(r).law(W), W))


def test_a_zero_omega_is_estimated_by_zero_under_every_sampler(generator):
    W = EdgeWeights.of(torch.zeros(6, 6, dtype=torch.float64))
    for case in [*all_cases(6, 2).values(), *all_cases(6, 3).values()]:
        t = case.sampler.sample(W, generator=generator)
        assert_close("estimate", torch.zeros(6, 6), t.dense(W))
        assert_close("sum of probabilities", 1.0, sum(p for _, p in case.sampler.law(W)))
    for sampler in (Sparsified(3), Sparsified(3, "abs"), HRegular(2, method="reject-2")):
        t = sampler.sample(W, generator=generator)
        assert_close("estimate", torch.zeros(6, 6), t.dense(W))


@pytest.mark.parametrize("scale", [1e-150, 1e-162, 1e-200, 1e-310])
def test_weights_whose_squares_underflow_are_drawn_and_estimated_without_bias(scale, generator):
    omega = scale * WEIGHTS["gaussian"](6, generator)
    W = EdgeWeights.of(omega)
    samplers = [case.sampler for case in all_cases(6, 2).values()]
    samplers += [Sparsified(2), Sparsified(2, "abs"), Sparsified(2, "square")]
    samplers += [HRegular(2, "square", "reject-1"), HRegular(2, "square", "reject-2")]
    for sampler in samplers:
        assert torch.isfinite(sampler.sample(W, generator=generator).dense(W)).all()
        mean = sum(p * (t.dense(W) / scale) for t, p in sampler.law(W))
        # Subnormal numbers have few digits: those of 1e-310 are 5e-15 apart from each other.
        assert_close(f"E[estimate] of {sampler}", W.dense() / scale, mean, factor=10)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_gradient_normal_to_the_manifold_is_estimated_by_zero(k, dtype, generator):
    # At an optimum G = X S with S symmetric: Omega is zero up to rounding, and nothing hangs.
    X = random_stiefel(8, k, generator=generator, dtype=dtype)
    S = torch.randn(k, k, generator=generator, dtype=dtype)
    samplers = [
        HRegular(2, h, m) for h in ("abs", "square") for m in ("edge", "reject-1", "reject-2")
    ]
    for G in (2 * X, X @ (S + S.mT)):
        for sampler in [
            *samplers,
            HRegular(2, "square", horvitz_thompson=True),
            Sparsified(3, "abs"),
        ]:
            W = EdgeWeights(X, G)
            estimate = sampler.sample(W, generator=generator).dense(W)
            assert torch.isfinite(estimate).all() and estimate.abs().max() < 1e3 * EPS[dtype]


@pytest.mark.parametrize("scale", [300.0, 1e-4])
@pytest.mark.parametrize("h", ["abs", "square"])
def test_half_precision_weights_keep_an_exact_law(scale, h, generator):
    omega = (scale * WEIGHTS["gaussian"](6, generator)).to(torch.float16)
    W = EdgeWeights.of(omega)
    law = HRegular(2, h).law(W)
    assert_close("sum of probabilities", 1.0, sum(p for _, p in law))
    mean = sum(p * t.dense(W).double() for t, p in law)
    assert_close("E[estimate]", W.dense() / scale, mean / scale, torch.float32)


def test_a_block_of_all_rows_is_the_exact_method(generator):
    W = EdgeWeights.of(WEIGHTS["gaussian"](7, generator))
    ((t, p),) = Uniform(7).law(W)
    assert (p, t.weights) == (1.0, 1.0)
    assert_close("estimate", W.dense(), t.dense(W))
