"""Integrators: their order by fitted slopes, their forms, batches, and bad input."""

import pytest
import torch

from flow_cases import FIELDS, Play, brockett, driven, solution
from helpers import EPS, assert_close, fitted_slope, random_skew, random_stiefel
from skewflow import geometry
from skewflow.errors import NonFiniteError, NotOnManifoldError, ShapeError
from skewflow.flows import (
    Brockett,
    Field,
    GradientField,
    integrate,
    integrate_adaptive,
    integrate_strang,
)
from skewflow.flows.adaptive import _pull_back, _step
from skewflow.samplers import HRegular, RelabelledRoundRobin, RoundRobin, Uniform

SIDES = ["left", "right"]
DURATION = 0.4


def errors(method, field, X0, counts, t0=0.0):
    exact = solution(field, X0, t0, t0 + DURATION)
    return [(method(field, X0, DURATION / n, n, t0=t0).last - exact).norm().item() for n in counts]


@pytest.mark.many_calls
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize(
    "method, order", [(integrate, 1), (integrate_strang, 2)], ids=["exact", "strang"]
)
def test_deterministic_integrators_have_their_order(method, order, name, side, generator):
    field = FIELDS[name](side, generator)
    X0 = random_stiefel(4, generator=generator)
    counts = [8, 16, 32, 64]
    measured = errors(method, field, X0, counts, t0=0.3)
    slope = fitted_slope([1 / n for n in counts], measured)
    assert abs(slope - order) < 0.2


def test_cayley_has_the_order_of_the_exponential(generator):
    field, X0 = brockett("left", generator), random_stiefel(4, generator=generator)

    def method(*args, **options):
        return integrate(*args, retraction="cayley", **options)

    counts = [8, 16, 32, 64]
    assert abs(fitted_slope([1 / n for n in counts], errors(method, field, X0, counts)) - 1) < 0.2


def mean_over_all_paths(field, X0, eta, num_steps):
    """E X after independent uniform draws of the three matchings of K4: all 3^n paths."""
    level = X0[None]
    for i in range(num_steps):
        level = torch.cat(
            [
                integrate(
                    field,
                    level,
                    eta,
                    1,
                    sampler=Play([r]),
                    generator=torch.Generator(),
                    t0=i * eta,
                ).last
                for r in range(3)
            ]
        )
    return level.mean(0)


@pytest.mark.many_calls
@pytest.mark.parametrize("side", SIDES)
def test_the_mean_of_the_stochastic_product_converges_with_first_order(side, generator):
    field, X0 = brockett(side, generator), random_stiefel(4, generator=generator)
    exact = solution(field, X0, 0.0, 0.1)
    counts = [2, 3, 4, 5, 6]
    bias = [(mean_over_all_paths(field, X0, 0.1 / n, n) - exact).norm().item() for n in counts]
    assert abs(fitted_slope([1 / n for n in counts], bias) - 1) < 0.2


@pytest.mark.parametrize("sampler", [Uniform(2), Uniform(3), RoundRobin(replacement=True)])
def test_the_mean_over_the_law_converges_with_first_order_on_a_long_run(sampler, generator):
    # For a constant generator the mean of a product of independent steps is the power of the mean.
    omega = random_skew(6, generator=generator)
    I = torch.eye(6, dtype=torch.float64)
    field = Field(lambda t, X: omega.expand(*X.shape[:-2], 6, 6))
    (W,) = field.edge_weights(0.0, I)
    exact = solution(field, I, 0.0, 0.5)
    counts, bias = [128, 256, 512, 1024], []
    for n in counts:
        law = sampler.law(W)
        mean = sum(p * geometry.expm(0.5 / n * t.dense(W)) for t, p in law)
        bias.append((torch.linalg.matrix_power(mean, n) - exact).norm().item())
    assert abs(fitted_slope([1 / n for n in counts], bias) - 1) < 0.2


def test_a_sampled_step_is_the_exponential_of_the_estimate(generator):
    field, X0 = brockett("right", generator, d=6), random_stiefel(6, generator=generator)
    seed = torch.Generator().manual_seed(3)
    stepped = integrate(field, X0, 0.1, 1, sampler=HRegular(3), generator=seed).last
    (W,) = field.edge_weights(0.0, X0)
    drawn = HRegular(3).sample(W, generator=torch.Generator().manual_seed(3)).dense(W)
    assert_close("X", X0 @ geometry.expm(0.1 * drawn), stepped)


@pytest.mark.parametrize("replacement", [False, True])
def test_a_full_sweep_in_one_step_is_the_exact_step_only_without_replacement(
    replacement, generator
):
    field, X0 = brockett("left", generator), random_stiefel(4, generator=generator)
    differences, etas = [], [0.01, 0.005, 0.0025]
    for eta in etas:
        sampler = RoundRobin(replacement=replacement)
        options = {"sampler": sampler, "generator": torch.Generator().manual_seed(0)}
        swept = integrate(field, X0, eta, 1, num_draws=3, **options).last
        differences.append((swept - integrate(field, X0, eta, 1).last).norm().item())
    assert abs(fitted_slope(etas, differences) - (1 if replacement else 2)) < 0.2


def test_the_adaptive_pair_has_orders_three_and_two(generator):
    for side in SIDES:
        field, X = driven(side, generator), random_stiefel(4, generator=generator)
        steps = [0.1, 0.05, 0.025]
        local, estimated = [], []
        for h in steps:
            Y, _, error = _step(field, 0.2, X, field(0.2, X), h)
            local.append((Y - solution(field, X, 0.2, 0.2 + h)).norm().item())
            estimated.append(error)
        assert abs(fitted_slope(steps, local) - 4) < 0.2
        assert abs(fitted_slope(steps, estimated) - 3) < 0.2


def test_the_slope_in_the_linear_space_is_the_inverse_of_the_derivative_of_exp(generator):
    # exp(u + e du) = exp(e omega) exp(u) + O(e^2) for the slope du, which is exact up to O(|u|^4).
    u, omega = random_skew(5, generator=generator), random_skew(5, generator=generator)
    sizes, e, wrong = [0.4, 0.2, 0.1], 1e-6, []
    for size in sizes:
        ahead, behind = (
            geometry.expm(size * u + s * e * _pull_back(size * u, omega, "left")) for s in (1, -1)
        )
        slope = (ahead - behind) / (2 * e) @ geometry.expm(-size * u)
        wrong.append((slope - omega).norm().item())
    assert abs(fitted_slope(sizes, wrong) - 4) < 0.2


@pytest.mark.many_calls
@pytest.mark.parametrize("side", SIDES)
def test_the_adaptive_integrator_keeps_its_tolerance(side, generator):
    field, X0 = driven(side, generator), random_stiefel(4, generator=generator)
    exact = solution(field, X0, 0.5, 2.0)
    sizes = []
    for tolerance in (1e-3, 1e-4, 1e-6):
        path = integrate_adaptive(field, X0, 1.5, tolerance=tolerance, t0=0.5)
        assert path.times[-1] == 2.0 and path.times[0] == 0.5
        # Every step may err by the tolerance, and the flow may double what earlier steps left.
        assert (path.last - exact).norm() <= 2 * tolerance * len(path.times)
        sizes.append(len(path.times))
    assert sizes == sorted(sizes)
    back = integrate_adaptive(field, path.last, -1.5, tolerance=1e-6, t0=2.0).last
    assert (back - X0).norm() <= 2 * 2e-6 * 2 * sizes[-1]


METHODS = {
    "exact": lambda f, X, g: integrate(f, X, 0.05, 200),
    "cayley": lambda f, X, g: integrate(f, X, 0.05, 200, retraction="cayley"),
    "uniform": lambda f, X, g: integrate(f, X, 0.05, 200, sampler=Uniform(3), generator=g),
    "sweep": lambda f, X, g: integrate(
        f, X, 0.05, 200, sampler=RelabelledRoundRobin(), num_draws=2, generator=g
    ),
    "strang": lambda f, X, g: integrate_strang(f, X, 0.05, 20),
    "adaptive": lambda f, X, g: integrate_adaptive(f, X, 5.0, tolerance=1e-4),
}


@pytest.mark.many_calls
@pytest.mark.parametrize("k, dtype", [(5, torch.float64), (2, torch.float32)], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_every_integrator_stays_orthogonal(name, k, dtype, generator):
    X0 = random_stiefel(5, k, generator=generator, dtype=dtype, batch=(2,))
    G = random_stiefel(5, k, generator=generator, dtype=dtype)
    field = GradientField(lambda X: (X * G).sum((-2, -1)) + X[..., 0, 0] ** 2)
    path = METHODS[name](field, X0, generator)
    assert path.last.dtype == dtype
    # Rounding of 200 steps, each of some ulp.
    assert geometry.orthogonality_error(path.points).max() < 10 * EPS[dtype]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["exact", "sampled", "strang"])
def test_a_batch_equals_its_members_one_by_one(name, side, generator):
    field = driven(side, generator)
    X0 = random_stiefel(4, generator=generator, batch=(2, 3))

    def run(X):
        if name == "strang":
            return integrate_strang(field, X, 0.1, 5, record_every=2)
        sampler = Play([0, 2, 1]) if name == "sampled" else None
        return integrate(
            field, X, 0.1, 5, sampler=sampler, generator=torch.Generator(), record_every=2
        )

    together = run(X0)
    assert together.points.shape == (4, 2, 3, 4, 4)
    assert together.times.tolist() == pytest.approx([0.0, 0.2, 0.4, 0.5])
    for i in range(2):
        for j in range(3):
            assert_close("points", run(X0[i, j]).points, together.points[:, i, j])


@pytest.mark.parametrize("sampler", [None, Play([0, 1, 2])], ids=["exact", "sampled"])
def test_the_reverse_form_is_the_left_form_on_the_transpose(sampler, generator):
    right = driven("right", generator)
    left = Field(lambda t, Y: -right(t, Y.mT))
    X0 = random_stiefel(4, generator=generator)
    options = {"sampler": sampler, "generator": torch.Generator()}
    assert_close(
        "X",
        integrate(left, X0.mT, 0.1, 7, **options).last.mT,
        integrate(right, X0, 0.1, 7, **options).last,
    )
    assert_close(
        "strang",
        integrate_strang(left, X0.mT, 0.1, 3).last.mT,
        integrate_strang(right, X0, 0.1, 3).last,
    )
    assert_close(
        "adaptive",
        integrate_adaptive(left, X0.mT, 1.0, tolerance=1e-4).last.mT,
        integrate_adaptive(right, X0, 1.0, tolerance=1e-4).last,
    )


def test_exact_steps_along_a_gradient_are_equal_in_both_forms(generator):
    A = random_stiefel(5, generator=generator)
    X0 = random_stiefel(5, generator=generator)
    F = lambda X: (X * A).sum((-2, -1)) + X[..., 0, 0] * X[..., 1, 1]  # noqa: E731
    left = integrate(GradientField(F), X0, 0.1, 10).last
    assert_close("X", left, integrate(GradientField(F, "right"), X0, 0.1, 10).last)


@pytest.mark.parametrize("sampler", [RoundRobin, RelabelledRoundRobin, lambda: Uniform(2)])
def test_chunks_equal_one_run_to_the_bit(sampler, generator):
    field = brockett("left", generator, d=5)
    X0 = random_stiefel(5, generator=generator, batch=(2,))
    g = torch.Generator().manual_seed(1)
    whole = integrate(field, X0, 0.05, 17, sampler=sampler(), generator=g).last
    g, X = torch.Generator().manual_seed(1), X0
    samplers = [sampler(), sampler()]
    for n in (3, 8, 6):
        X = integrate(field, X, 0.05, n, sampler=samplers, generator=g).last
    assert torch.equal(whole, X)


def test_a_taylor_series_can_stand_for_the_exponential(generator):
    field, X0 = brockett("left", generator), random_stiefel(4, generator=generator)
    series = integrate(field, X0, 0.05, 10, retraction=lambda A: geometry.taylor(A, 20)).last
    assert_close("X", integrate(field, X0, 0.05, 10).last, series)


def test_the_samplers_of_the_caller_are_not_moved_on(generator):
    sampler = RoundRobin()
    X0 = random_stiefel(4, generator=generator)
    integrate(brockett("left", generator), X0, 0.1, 2, sampler=sampler, generator=generator)
    assert sampler.state_dict()["order"] is None


@pytest.mark.bad_input
def test_bad_input_is_refused_with_a_reason(generator):
    field, X0 = brockett("right", generator), random_stiefel(4, generator=generator)
    with pytest.raises(TypeError, match="Wrap a function of"):
        integrate(lambda t, X: X, X0, 0.1, 1)
    with pytest.raises(NotOnManifoldError, match="not orthonormal"):
        integrate(field, 2 * X0, 0.1, 1)
    with pytest.raises(ShapeError, match="needs a square X"):
        integrate(field, X0[:, :2], 0.1, 1)
    for eta in (0.0, float("nan")):
        with pytest.raises(NonFiniteError, match="`eta` must be finite and not zero"):
            integrate(field, X0, eta, 1)
    with pytest.raises(ValueError, match="`num_steps` must be a whole number"):
        integrate(field, X0, 0.1, 0)
    with pytest.raises(ValueError, match="`record_every` must be a whole number"):
        integrate_strang(field, X0, 0.1, 1, record_every=0)
    with pytest.raises(ValueError, match="`num_draws` is for a sampler"):
        integrate(field, X0, 0.1, 1, num_draws=2)
    with pytest.raises(TypeError, match="`generator` is needed with a sampler"):
        integrate(field, X0, 0.1, 1, sampler=Uniform(2))
    with pytest.raises(ValueError, match="`retraction` must be one of 'exp', 'cayley'"):
        integrate(field, X0, 0.1, 1, retraction="polar")
    with pytest.raises(ValueError, match="one for each of the 1 matrices: got a list of 2"):
        integrate(field, X0, 0.1, 1, sampler=[Uniform(2), Uniform(2)], generator=torch.Generator())
    with pytest.raises(ValueError, match="`tolerance` must be positive"):
        integrate_adaptive(field, X0, 1.0, tolerance=0.0)
    with pytest.raises(ValueError, match="of the sign of `first_step`"):
        integrate_adaptive(field, X0, 1.0, tolerance=1e-3, first_step=-0.1)
    with pytest.raises(RuntimeError, match="3 steps did not reach the end"):
        integrate_adaptive(field, X0, 1.0, tolerance=1e-12, max_steps=3)


@pytest.mark.parametrize(
    "follow",
    [
        lambda field, X0: integrate(field, X0, 0.05, 3),
        lambda field, X0: integrate(field, X0, 0.05, 3, retraction="cayley"),
        lambda field, X0: integrate(
            field, X0, 0.05, 3, sampler=Uniform(3), generator=torch.Generator().manual_seed(0)
        ),
        lambda field, X0: integrate_strang(field, X0, 0.05, 3),
        lambda field, X0: integrate_adaptive(field, X0, 0.1, tolerance=1e-3),
    ],
    ids=["exp", "cayley", "sampler", "strang", "adaptive"],
)
def test_autocast_changes_no_bit_of_a_path(follow, generator):
    field = Brockett(torch.diag(torch.arange(6.0)), torch.tensor([2.0, 1.0]))
    X0 = random_stiefel(6, 2, generator=generator, dtype=torch.float32)
    expected = follow(field, X0).last
    with torch.autocast("cpu", torch.bfloat16):
        result = follow(field, X0).last
    assert result.dtype == expected.dtype and torch.equal(result, expected)
