"""Ask and tell: the gradient, its law, the perturbations, the state, and errors."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from es.objectives import Noisy
from helpers import assert_close, randn, random_skew, random_stiefel
from skewflow.errors import (
    CheckpointError,
    NonFiniteGradientError,
    NonFiniteReturnError,
    NotOnManifoldError,
    ShapeError,
)
from skewflow.es import EvolutionStrategy, InProcess, Moments, Outcome
from skewflow.geometry import check_stiefel, omega, orthogonality_error
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.samplers import HRegular


class Keep(torch.optim.SGD):
    """Keeps the gradients it is given and moves nothing."""

    def __init__(self, params):
        super().__init__(params, lr=0.0)

    def step(self, closure=None):
        self.seen = [p.grad.clone() for group in self.param_groups for p in group["params"]]


def gradient_of(f, params, **options):
    """The gradients of one generation."""
    keep = Keep(params.values())
    strategy = EvolutionStrategy(params, [keep], shaping="plain", **options)
    generation = strategy.ask()
    strategy.tell([float(f(generation.params(task))) for task in generation.tasks])
    return generation, dict(zip(params, keep.seen, strict=True))


def linear(generator, *shape):
    return randn(*shape, generator=generator)


def test_the_gradient_of_a_linear_function_is_a_second_moment_of_the_directions(generator):
    C = {"a": linear(generator, 3, 2), "b": linear(generator, 4)}
    params = {
        "a": nn.Parameter(linear(generator, 3, 2)),
        "b": nn.Parameter(torch.zeros(4).double()),
    }
    f = lambda p: sum((C[name] * p[name]).sum() for name in C)  # noqa: E731
    generation, found = gradient_of(f, params, num_directions=6, sigma=0.3, seed=5)
    flat = torch.stack(
        [torch.cat([d.ravel() for d in generation.direction(i).values()]) for i in range(6)]
    )
    expected = flat.mT @ flat @ torch.cat([c.ravel() for c in C.values()]) / 6
    # Values are differences over 2 sigma, which loses a digit.
    assert_close("G", expected, torch.cat([g.ravel() for g in found.values()]), factor=10)


def test_the_gradient_of_a_linear_function_is_unbiased(generator):
    C = linear(generator, 5)
    f = lambda p: (C * p["x"]).sum()  # noqa: E731
    n = 20_000
    _, found = gradient_of(
        f, {"x": nn.Parameter(torch.zeros(5).double())}, num_directions=n, sigma=1
    )
    # Each entry is a mean of n terms delta_i <delta, C>, of variance |C|^2 + C_i^2; five looks at
    # 4 standard errors raise a false alarm once in 3000 seeds, and this one is fixed.
    errors = torch.sqrt((C.square().sum() + C.square()) / n)
    assert ((found["x"] - C).abs() < 4 * errors).all()


def test_the_sign_of_the_gradient_follows_maximize(generator):
    f = lambda p: p["x"].sum()  # noqa: E731
    params = {"x": nn.Parameter(torch.zeros(3).double())}
    _, down = gradient_of(f, params, num_directions=4, sigma=0.1)
    _, up = gradient_of(f, params, num_directions=4, sigma=0.1, maximize=True)
    assert torch.equal(down["x"], -up["x"])


def test_directions_are_standard_normal_and_never_the_same():
    x = nn.Parameter(torch.zeros(10_000))
    strategy = EvolutionStrategy({"x": x}, [Keep([x])], num_directions=3, sigma=0.1)
    seen = []
    for _ in range(2):
        generation = strategy.ask()
        seen += [generation.direction(i)["x"] for i in range(3)]
        strategy.tell([0.0] * 6)
    for delta in seen:  # 12 looks at 5 standard errors
        assert abs(delta.mean()) < 5 / 100 and abs(delta.square().mean() - 1) < 5 * 2**0.5 / 100
    correlations = torch.corrcoef(torch.stack(seen)) - torch.eye(6)
    assert correlations.abs().max() < 5 / 100


def test_the_two_sides_of_a_direction_mirror_each_other(generator):
    x = nn.Parameter(linear(generator, 4))
    strategy = EvolutionStrategy({"x": x}, [Keep([x])], num_directions=2, sigma=0.1, num_scores=2)
    generation = strategy.ask()
    plus, minus, *_, centre = (generation.params(task)["x"] for task in generation.tasks)
    assert_close("mean", x, (plus + minus) / 2)
    assert torch.equal(centre, x) and centre is not x
    assert [task.sign for task in generation.tasks] == [1, -1, 1, -1, 0, 0]


@pytest.mark.parametrize("shape", [(6, 6), (7, 3), (3, 7), (2, 5, 4)], ids=str)
def test_geodesic_perturbations_stay_on_the_manifold_and_ambient_ones_do_not(generator, shape):
    *batch, d, k = shape
    X = random_stiefel(max(d, k), min(d, k), batch=tuple(batch), generator=generator)
    X = nn.Parameter(X.mT.contiguous() if d < k else X)
    for geodesics in (["W"], []):
        strategy = EvolutionStrategy(
            {"W": X}, [Keep([X])], num_directions=2, sigma=0.3, geodesics=geodesics
        )
        generation = strategy.ask()
        for task in generation.tasks:
            W = generation.params(task)["W"]
            on = bool(check_stiefel(W.mT if d < k else W))
            assert on == bool(geodesics)


def test_both_perturbations_give_the_generator_of_the_true_gradient(generator):
    X, C = random_stiefel(5, 3, generator=generator), linear(generator, 5, 3)
    f = lambda p: (C * p["W"]).sum()  # noqa: E731
    n = 500
    for geodesics in ([], ["W"]):
        _, found = gradient_of(
            f, {"W": nn.Parameter(X)}, num_directions=n, sigma=1e-3, geodesics=geodesics
        )
        error = omega(X, found["W"]) - omega(X, C)
        # An entry of omega is linear in the gradient, whose entries have a variance of at most
        # 2|C|^2 / n each; a row of X has length at most 1.
        assert error.abs().max() < 5 * (2 * 2 * C.square().sum() / n) ** 0.5


@pytest.mark.parametrize("geodesics", [[], ["W"]], ids=["ambient", "geodesic"])
@pytest.mark.parametrize(
    "make, sampler", [(FlowSGD, "uniform"), (FlowSGD, HRegular(2)), (FlowAdam, HRegular(2))]
)
def test_an_orthogonal_parameter_finds_its_target_and_stays_orthogonal(
    generator, make, sampler, geodesics
):
    target = random_stiefel(6, generator=generator, dtype=torch.float32)
    turn = torch.matrix_exp(0.1 * random_skew(6, generator=generator, dtype=torch.float32))
    W = nn.Parameter(turn @ target)
    distance = lambda p: (p["W"] - target).square().sum()  # noqa: E731
    start = float(distance({"W": W.detach()}))
    flow = make([W], lr=0.05 if make is FlowSGD else 0.01, block_size=2, sampler=sampler)
    strategy = EvolutionStrategy(
        {"W": W}, [flow], num_directions=24, sigma=0.05, shaping="plain", geodesics=geodesics
    )
    with InProcess(distance) as workers:
        for _ in range(40):
            strategy.tell(workers.evaluate(strategy.ask()))
    assert float(distance({"W": W.detach()})) < 0.2 * start
    assert orthogonality_error(W.detach()) < 1e-5
    assert W.grad is None


def pair(seed=3, **options):
    W = nn.Parameter(torch.eye(40))
    b = nn.Parameter(torch.ones(3))
    flow = FlowSGD([("W", W)], lr=1e-3, block_size=2, sampler=HRegular(2), momentum=0.9, seed=1)
    adam = torch.optim.Adam([b], lr=0.05)
    return EvolutionStrategy(
        {"W": W, "b": b},
        [flow, adam],
        num_directions=4,
        sigma=0.1,
        seed=seed,
        num_scores=1,
        num_evaluations=2,
        **options,
    )


def advance(strategy, generations):
    with InProcess(Noisy()) as workers:
        return [strategy.tell(workers.evaluate(strategy.ask())) for _ in range(generations)]


def test_a_resumed_strategy_gives_the_same_bits(tmp_path):
    whole = pair()
    records = advance(whole, 5)
    stopped = pair()
    assert advance(stopped, 2) == records[:2]
    torch.save(stopped.state_dict(), tmp_path / "state")
    again = pair()
    again.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert advance(again, 3) == records[2:]
    assert torch.equal(again.params["W"], whole.params["W"])
    assert (again.moments.squares == whole.moments.squares).all()


@pytest.mark.parametrize("geodesics", [(), ["W"]], ids=["ambient", "geodesic"])
def test_an_evaluation_that_changes_its_parameters_does_not_change_the_next(geodesics):
    class Greedy(Noisy):
        def evaluate(self, params, seed, moments):
            outcome = super().evaluate(params, seed, moments)
            for p in params.values():
                p.zero_()
            return outcome

    generation = pair(geodesics=geodesics).ask()
    assert all(len(task.seeds) == 2 for task in generation.tasks if task.sign)
    with InProcess(Noisy()) as one, InProcess(Greedy()) as other:
        found, again = one.evaluate(generation), other.evaluate(generation)
    assert [o.value for o in found] == [o.value for o in again]


def test_another_seed_gives_another_run():
    assert advance(pair(), 2) != advance(pair(seed=4), 2)


def test_observations_of_the_directions_are_merged_in_their_order_and_handed_on():
    strategy = pair()
    (record,) = advance(strategy, 1)
    assert strategy.moments.count == 5 * 2 * 8 and record.steps == 5 * 2 * 8
    assert strategy.ask().moments is strategy.moments
    rows = [
        Noisy().evaluate({"W": torch.eye(40), "b": torch.ones(3)}, seed, None).observed
        for task in pair().ask().tasks
        if task.sign
        for seed in task.seeds
    ]
    merged = rows[0]
    for i in range(0, 16, 2):  # a task merges its own evaluations first
        two = rows[i].merge(rows[i + 1])
        merged = two if i == 0 else merged.merge(two)
    assert (merged.mean == strategy.moments.mean).all()


@pytest.mark.parametrize("common", [True, False])
def test_seeds_are_common_to_the_generation_or_to_the_pair(common):
    strategy = pair(common_seeds=common)
    tasks = [task for task in strategy.ask().tasks if task.sign]
    assert all(a.seeds == b.seeds for a, b in zip(tasks[::2], tasks[1::2], strict=True))
    assert len({task.seeds for task in tasks}) == (1 if common else 4)
    before = strategy.ask().tasks
    advance(strategy, 1)
    after = strategy.ask().tasks
    assert not {t.seeds for t in before if t.sign} & {t.seeds for t in after if t.sign}
    assert before[-1].seeds == after[-1].seeds  # the score's start does not change


@pytest.mark.parametrize("common", [True, False])
def test_the_seeds_of_a_generation_are_known_before_it_is_asked_for(common):
    strategy = pair(common_seeds=common)
    ahead = [strategy.evaluation_seeds(number) for number in range(3)]
    for seeds in ahead:
        assert [task.seeds for task in strategy.ask().tasks if task.sign == 1] == seeds
        advance(strategy, 1)


def test_asking_twice_gives_the_same_generation_and_telling_the_next():
    strategy = pair()
    assert strategy.ask() is strategy.ask()
    advance(strategy, 1)
    assert strategy.ask().number == strategy.generation == 1


def test_equal_values_move_nothing():
    x = nn.Parameter(torch.ones(3))
    strategy = EvolutionStrategy(
        {"x": x}, [torch.optim.SGD([x], lr=1.0)], num_directions=3, sigma=0.1
    )
    record = strategy.tell([2.0] * 6)
    assert torch.equal(x, torch.ones(3))
    assert (record.mean, record.deviation, record.best, record.score) == (2.0, 0.0, 2.0, None)


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1"], ids=str)
def test_a_value_that_is_no_number_is_refused_before_anything_changes(value):
    strategy = pair()
    before = strategy.state_dict()
    values = [Outcome(1.0, 1, Moments.of(np.ones((1, 3))))] * 9
    values[5] = value
    with pytest.raises(NonFiniteReturnError, match="at minus direction 2 of generation 0. Nothing"):
        strategy.tell(values)
    after = strategy.state_dict()
    assert torch.equal(before["params"]["W"], after["params"]["W"])
    assert after["generation"] == 0 and after["moments"] is None and after["steps"] == 0
    with pytest.raises(ShapeError, match="each of the 9 tasks: got 8"):
        strategy.tell([1.0] * 8)


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_an_observation_that_is_not_finite_is_refused_before_anything_changes(value):
    strategy = pair()
    before = strategy.params["W"].clone()
    outcomes = [Outcome(float(i), 1, Moments.of(np.ones((1, 3)))) for i in range(9)]
    outcomes[5] = Outcome(5.0, 1, Moments(1, np.array([0.0, value, 0.0]), np.zeros(3)))
    with pytest.raises(NonFiniteReturnError, match="got others at minus direction 2 of .* Omit"):
        strategy.tell(outcomes)
    assert torch.equal(strategy.params["W"], before) and strategy.moments is None
    assert strategy.generation == strategy.steps == 0


@pytest.mark.bad_input
def test_returns_too_large_for_the_parameters_are_refused_before_anything_changes():
    x = nn.Parameter(torch.ones(3))
    strategy = EvolutionStrategy(
        {"x": x}, [torch.optim.SGD([x], 1.0)], num_directions=2, sigma=0.1, shaping="plain"
    )
    with pytest.raises(
        NonFiniteGradientError, match="gradient of x .* too large for torch.float32"
    ):
        strategy.tell([1e200, 0.0, 0.0, 0.0])
    assert torch.equal(x, torch.ones(3)) and x.grad is None


@pytest.mark.bad_input
def test_settings_that_make_no_sense_are_refused():
    x, y = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(3))
    good = {"num_directions": 2, "sigma": 0.1}
    for params, held, options, text in [
        ({"x": x}, [x], {"num_directions": 0}, "`num_directions` must be a whole number of at"),
        ({"x": x}, [x], {"sigma": 0.0}, "`sigma` must be above 0 and finite: got 0.0"),
        ({"x": x}, [x], {"seed": -1}, "`seed` must be a whole number of at least 0: got -1"),
        ({"x": x}, [x], {"top": 3}, "from 1 to the 2 directions: got 3"),
        ({"x": x}, [x], {"geodesics": ["z"]}, "must name parameters: got z; the parameters are x"),
        ({"x": x, "y": y}, [x], {}, "y belongs to 0. Give each to one optimiser"),
        ({"x": x}, [x, y], {}, "they hold 2, and there are 1"),
        ({}, [x], {}, "at least one parameter: got none"),
    ]:
        with pytest.raises(ValueError, match=text):
            EvolutionStrategy(params, [torch.optim.SGD(held, 0.1)], **{**good, **options})
    with pytest.raises(NotOnManifoldError, match="x has no geodesics"):
        EvolutionStrategy({"x": x}, [torch.optim.SGD([x], 0.1)], geodesics=["x"], **good)


@pytest.mark.bad_input
def test_a_state_of_another_run_is_refused():
    state = pair().state_dict()
    with pytest.raises(CheckpointError, match=r"they differ in seed \(3 there, 4 here\). Use"):
        pair(seed=4).load_state_dict(state)
    with pytest.raises(CheckpointError, match="it lacks moments, params"):
        pair().load_state_dict({k: v for k, v in state.items() if k not in ("moments", "params")})
    state["params"]["W"] = torch.eye(3)
    with pytest.raises(CheckpointError, match="fits its own parameters only"):
        pair().load_state_dict(state)
    state["params"]["W"] = torch.eye(40).double()
    with pytest.raises(CheckpointError, match=r"'W': '\(40, 40\) torch.float64', .* and here are"):
        pair().load_state_dict(state)


def two(groups, lr):
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    free = {"params": [b]}
    sgd = torch.optim.SGD([{"params": [a]}], lr=lr, momentum=0.9)
    adam = torch.optim.Adam([free] if groups == 1 else [free, {"params": []}], lr=lr)
    return EvolutionStrategy({"a": a, "b": b}, [sgd, adam], num_directions=2, sigma=0.1)


@pytest.mark.bad_input
def test_a_state_of_other_parameter_groups_is_refused_before_anything_changes():
    saved, here = two(groups=1, lr=0.1), two(groups=2, lr=0.2)
    for strategy, values in ((saved, [1.0, 2.0, 5.0, 3.0]), (here, [1.0, 0.0, 0.0, 1.0])):
        strategy.tell(values)
    before = deepcopy(here.state_dict())
    with pytest.raises(
        CheckpointError, match=r"fits its own optimisers only: .* groups\). Nothing"
    ):
        here.load_state_dict(saved.state_dict())
    after = here.state_dict()
    for name, p in before["params"].items():
        assert torch.equal(after["params"][name], p)
    for ours, own in zip(after["optimizers"], before["optimizers"], strict=True):
        assert [group["lr"] for group in ours["param_groups"]] == [0.2] * len(own["param_groups"])
        torch.testing.assert_close(ours["state"], own["state"], rtol=0, atol=0)
