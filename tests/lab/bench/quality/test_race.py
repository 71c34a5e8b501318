"""The clock, the search, and the race."""

import itertools
import math

import pytest
import torch

from skewflow.geometry import project
from skewflow_lab.bench.quality import race as module
from skewflow_lab.bench.quality.matrix_problems import PCA
from skewflow_lab.bench.quality.methods import METHODS, Method, Runner, Solver
from skewflow_lab.bench.quality.race import (
    Racer,
    Setting,
    begin,
    evaluation_times,
    race,
    warm_up,
)
from skewflow_lab.bench.quality.search import MOST_RATES, climb, hopeless, trial


class Clock:
    """Shows the time that steps and losses have taken."""

    def __init__(self):
        self.now = self.slept = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.slept += seconds


class Fake(PCA):
    """A problem whose loss takes long to compute."""

    def __init__(self, clock):
        super().__init__(5, 2, device="cpu")
        self.clock = clock

    def loss(self, X):
        self.clock.now += 100.0
        return super().loss(X)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def racer(clock, points=(), log=None, name="", problem=None):
    """A run whose steps take a second each and lead to the given points in turn."""
    problem = problem or Fake(clock)
    where = [problem.start()]

    def step(number):
        clock.now += 1.0
        if log is not None:
            log.append(name)
        if number < len(points):
            where[0] = points[number]

    made = Racer(problem, Runner(step, lambda: where[0]))
    made.evaluate()
    return made


def test_the_clock_stands_still_while_a_loss_is_evaluated(clock):
    run = racer(clock)
    run.advance(10.0)
    run.advance(10.0)  # nothing is left to do
    run.advance(25.0)
    assert [(p["seconds"], p["steps"]) for p in run.curve] == [(0, 0), (10, 10), (25, 25)]


def test_a_run_is_seen_at_the_end_of_an_epoch_where_that_is_little_more(clock):
    class Again(Fake):
        epoch = 8

    run = racer(clock, problem=Again(clock))
    for until in (5.0, 15.0, 47.0, 73.0, 81.0):
        run.advance(until)
    # To go on from 5 to 8 would be more than a tenth, from 73 to 80 it is less.
    assert [p["steps"] for p in run.curve] == [0, 5, 16, 48, 80, 88]
    assert [p["seconds"] for p in run.curve] == [0, 5, 16, 48, 80, 88]


def test_all_take_turns_from_one_evaluation_to_the_next(clock):
    log = []
    race([racer(clock, log=log, name="a"), racer(clock, log=log, name="b")], 4000.0, lambda: None)
    assert log.count("a") == log.count("b") == 4000
    changes = sum(x != y for x, y in itertools.pairwise(log))
    assert changes == 2 * module.EVALUATIONS - 1
    assert clock.slept == pytest.approx(2 * module.EVALUATIONS * module.PAUSE)


def test_there_is_no_pause_for_a_run_that_has_no_turn(clock):
    lost = racer(clock, [torch.full((5, 2), torch.nan)])
    race([lost], 4000.0, lambda: None)
    assert clock.slept == module.PAUSE
    clock.slept = 0.0
    slow = racer(clock)
    race([slow], 5.0, lambda: None)
    assert slow.steps == 5  # of a second each: most evaluations come before the first is over
    assert clock.slept == pytest.approx((len(slow.curve) - 1) * module.PAUSE)
    assert len(slow.curve) - 1 <= slow.steps


def test_a_run_that_has_solved_the_problem_stops(clock):
    problem = Fake(clock)
    at = problem.loss(project(problem.start().double()))
    solution = torch.linalg.eigh(problem.A).eigenvectors[:, -2:]
    there, never = (racer(clock, points, problem=problem) for points in ([solution], []))
    race([there, never], 400.0, lambda: None, solved=(at + problem.optimum) / 2)
    first = evaluation_times(400.0)[0]
    assert [p["seconds"] for p in there.curve] == [0.0, pytest.approx(first)]
    assert there.record()["failure"] is None and never.seconds == 400.0


def test_a_run_that_leaves_the_manifold_may_come_back(clock):
    far, back = 3 * torch.eye(5, 2), torch.eye(5, 2)
    run = racer(clock, [far, back])
    run.advance(1.0)
    assert "lost: ||X^T X - I||_F / sqrt(k) = 8.0e+00 at its end" in run.record()["failure"]
    run.advance(2.0)
    assert run.record()["failure"] is None and [p["steps"] for p in run.curve] == [0, 2]


def test_the_rate_of_steps_of_fixed_length_falls_to_zero_with_the_time(clock):
    problem, parts = Fake(clock), []

    def step(number):
        clock.now += 1.0

    run = Racer(problem, Runner(step, problem.start, parts.append), 10.0)
    for until in (1.0, 4.0, 10.0):
        run.advance(until)
    assert parts == pytest.approx([1 - step / 10 for step in range(10)])
    method = Method(lambda *_: Runner(step, problem.start), base=lambda _: 0.2, radians=True)
    assert Setting(0, 0.9).lr(method, problem) == 0.2  # momentum does not lengthen such steps


def test_a_run_that_is_not_finite_stops(clock):
    run = racer(clock, [torch.full((5, 2), torch.nan)])
    run.advance(5.0)
    run.advance(9.0)
    assert run.record()["failure"] == "lost: not finite after 5 steps" and run.seconds == 5.0


def failing(problem, lr, momentum):
    def step(number):
        raise RuntimeError("no kernel\nfor you")

    return Runner(step, problem.start)


def test_a_failure_is_a_result_with_its_reason():
    problem = PCA(5, 2, device="cpu")
    assert warm_up(problem, Method(failing)) == "failed: RuntimeError: no kernel"
    assert trial(problem, Method(failing), Setting(0, 0.0), 0.01) == math.inf

    def unmade(problem, lr, momentum):
        raise ValueError("not this shape")

    assert begin(problem, Method(unmade), Setting(0, 0.0)) == "failed: ValueError: not this shape"
    assert trial(problem, Method(unmade), Setting(0, 0.0), 0.01) == math.inf


def test_a_solver_that_cannot_stop_restarts_for_each_evaluation():
    problem, asked = PCA(5, 2, device="cpu"), []

    def solve(seconds):
        asked.append(seconds)
        return 1.01 * seconds, 7 * len(asked), torch.eye(5, 2, dtype=torch.float64)

    run = begin(problem, Method(lambda *_: Solver(solve), rates=False), Setting(0, 0.0))
    race([run], 1.0, lambda: None)
    assert asked == evaluation_times(1.0)
    assert [p["steps"] for p in run.curve] == [7 * n for n in range(len(asked) + 1)]


@pytest.mark.parametrize(
    "score, tried",
    [
        (abs, {-1, 0, 1}),
        (lambda j: abs(j - 3), {-1, 0, 1, 2, 3, 4}),
        (lambda j: abs(j + 2), {1, 0, -1, -2, -3}),
        (lambda j: math.inf if j > -3 else abs(j + 4), {1, 0, -1, -2, -3, -4, -5}),
    ],
)
def test_the_search_goes_on_until_the_best_rate_has_neighbours(score, tried):
    assert set(climb(score)) == tried


def test_the_search_has_an_end():
    assert len(climb(lambda j: -j)) == MOST_RATES
    assert set(climb(lambda j: math.inf)) == {1, 0, -1, -2, -3, -4, -5, -6}


def test_a_search_may_end_at_the_first_three_rates():
    assert set(climb(lambda j: -j, most=3)) == {-1, 0, 1}


@pytest.mark.parametrize(
    "loss, best, optimum, given_up",
    [
        (4.1, math.inf, 0.0, True),  # above the start
        (4.1, math.inf, None, True),
        (4.0, math.inf, 0.0, False),  # nothing to compare with
        (3.9, -50.0, None, False),  # the distance to the optimum is unknown
        (0.4, 0.04, 0.0, False),  # at the pace of the best: half its digits half way
        (0.8, 0.04, 0.0, False),  # 0.2^3 of the start, below 0.01 of it
        (0.9, 0.04, 0.0, True),  # 0.225^3
        (-0.2, -0.96, -1.0, False),  # the same, from 4 above another optimum
        (-0.1, -0.96, -1.0, True),
        (1e-3, -1e-8, 0.0, False),  # below an optimum that is known to rounding
    ],
)
def test_half_a_trial_may_show_that_it_is_not_the_best(loss, best, optimum, given_up):
    start = 3.0 if optimum == -1.0 else 4.0
    assert hopeless(loss, start, best, optimum) is given_up


class Walk(Fake):
    """A problem whose losses are given: by the first entry of the point, which is orthonormal."""

    losses = (1.0,)

    def loss(self, X):
        return self.losses[min(int(self.clock.steps), len(self.losses) - 1)]


def walk(clock, losses, points=None):
    """A method whose steps take a second each and have these losses; and how many it took."""
    problem = Walk(clock)
    problem.losses, problem.optimum, clock.steps = losses, 0.0, 0

    def make(problem, lr, momentum):
        def step(number):
            clock.now += 1.0
            clock.steps += 1

        def point():
            return (points or {}).get(clock.steps, problem.start())

        return Runner(step, point)

    return problem, Method(make)


def test_a_trial_runs_to_its_end_while_it_may_be_the_best(clock):
    problem, method = walk(clock, [1.0] * 10 + [0.9] * 9 + [0.5])
    assert trial(problem, method, Setting(0, 0.0), 20.0, best=0.8) == 0.5
    assert clock.steps == 20


def test_a_trial_that_is_hopeless_half_way_stops_there_with_its_loss(clock):
    problem, method = walk(clock, [1.0] * 10 + [0.9] * 9 + [0.5])
    assert trial(problem, method, Setting(0, 0.0), 20.0, best=0.7) == 0.9
    assert clock.steps == 10
    problem, method = walk(clock, [1.0] * 10 + [1.1] * 11)
    assert trial(problem, method, Setting(0, 0.0), 20.0) == 1.1
    assert clock.steps == 10


@pytest.mark.parametrize("when", [2, 10])
def test_a_trial_that_is_not_finite_at_an_evaluation_stops_there(clock, when):
    problem, method = walk(clock, [1.0], {when: torch.full((5, 2), math.nan)})
    assert trial(problem, method, Setting(0, 0.0), 20.0) == math.inf
    assert clock.steps == when


@pytest.mark.parametrize(("when", "loss"), [(2, 1.0), (10, 1.0), (20, math.inf)])
def test_a_trial_that_is_far_from_the_manifold_may_come_back(clock, when, loss):
    problem, method = walk(clock, [1.0], {when: torch.full((5, 2), 3.0)})
    assert trial(problem, method, Setting(0, 0.0), 20.0) == loss
    assert clock.steps == 20


def test_a_trial_takes_one_step_at_least(clock):
    problem, method = walk(clock, [1.0, 0.5])
    assert trial(problem, method, Setting(0, 0.0), 0.25) == 0.5
    assert clock.steps == 1


@pytest.mark.parametrize(
    "seconds, options, least, taken",
    [
        ((9.0, 2.0, 5.0, 3.0), {}, 2.0, 4),  # the first one compiles
        ((9.0, 2.0, 5.0, 3.0), {"limit": 1.0}, 2.0, 3),
        ((9.0, 2.0, 0.5, 3.0), {"limit": 1.0}, 0.5, 4),  # the second one has waited
        ((9.0, 2.0, 5.0, 3.0), {"steps": 1}, 0.0, 1),
    ],
)
def test_the_first_steps_tell_what_a_step_takes(clock, seconds, options, least, taken):
    numbers = []

    def make(problem, lr, momentum):
        def step(number):
            clock.now += seconds[number]
            numbers.append(number)

        return Runner(step, problem.start)

    assert warm_up(Fake(clock), Method(make), **options) == least
    assert numbers == list(range(taken))


def test_learning_rates_start_where_a_step_turns_by_a_radian():
    problem = PCA(101, 20, device="cpu")
    base = {name: METHODS[name].base(problem) for name in ("dense", "s=2", "s=64")}
    assert base["dense"] == 1.0
    assert base["s=2"] == pytest.approx((101 / 2) ** 0.5 / 100)
    assert base["s=64"] == pytest.approx(0.63 * (101 / 64) ** 0.5)
    assert Setting(2, 0.9).lr(METHODS["dense"], problem) == pytest.approx(1.0)
