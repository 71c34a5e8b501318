"""The clock of a run, and races of several runs.

The clock stops while a loss is evaluated. On CUDA it runs from one synchronisation to the next,
with many steps between them.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...measure.timing import interleaved, reason
from .methods import Method, Runner, Solver
from .problem import Problem, on_manifold

FACTOR = 10**0.5
"""Factor between neighbouring learning rates of a search."""
EVALUATIONS = 24
"""Evaluations of a run, evenly spaced on a logarithmic scale from 1/200 of its seconds on."""
LITTLE = 0.1
"""Largest part of its steps that a run continues to reach the end of an epoch. Runs of ten epochs
or more are always evaluated there; shorter ones have gaps much larger than their noise."""
PAUSE = 0.04
"""Pause in seconds before a turn on a CPU. Threads of the previous run, which may belong to another
library, keep the cores busy for a short time after their last step."""
WARM_UP = 4
"""Untimed first steps, which compile kernels and record CUDA graphs."""


@dataclass
class Racer:
    """One run of one method: its clock, and its evaluations.

    Args:
        problem: The problem; no other run uses this object.
        runner: The method.
        length: Seconds of the whole run, in which the rate of some methods falls to zero.
        seconds: Time on its clock.
        steps: Number of steps taken.
        curve: The evaluations.
        failure: Why it stopped, or None.
        away: Distance to the manifold at the last evaluation, if too large for a loss; else None.
        done: Whether the run has ended.
    """

    problem: Problem
    runner: Runner
    length: float = math.inf
    seconds: float = 0.0
    steps: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    failure: str | None = None
    away: float | None = None
    done: bool = False

    @classmethod
    def start(
        cls,
        problem: Problem,
        method: Method,
        lr: float,
        momentum: float,
        order: int = 0,
        length: float = math.inf,
    ) -> "Racer":
        """Make a run, and evaluate its first point."""
        own = problem.fresh(order)
        made = method.make(own, lr, momentum)
        if isinstance(made, Solver):
            racer: Racer = Restarted(own, Runner(_no_step, own.start), length, solver=made)
        else:
            racer = cls(own, made, length)
        racer.evaluate()
        return racer

    def has_turn(self, until: float) -> bool:
        """Whether the run takes steps before its clock shows `until`."""
        return self.failure is None and not self.done and self.seconds < until

    def advance(self, until: float) -> None:
        """Take steps until the clock shows `until`, then evaluate. A failed run does nothing.

        The run continues to the end of an epoch if that is near, because the noise of the batches
        cancels over an epoch.
        """
        if not self.has_turn(until):
            return
        try:
            self._run(until)
        except Exception as error:  # a rival's failure is a result; the others continue
            self.failure = f"failed: {reason(error)}"
        else:
            self.evaluate()

    def _run(self, until: float) -> None:
        while self.seconds < until:
            left = (until - self.seconds) * self.steps / self.seconds if self.steps else 0.0
            repeat = max(1, min(round(left), 2 * self.steps))
            self.seconds += self.timed(repeat)
        rest = -self.steps % self.problem.epoch
        if 0 < rest <= LITTLE * self.steps:
            self.seconds += self.timed(rest)

    def timed(self, repeat: int) -> float:
        """Take `repeat` steps; returns their seconds."""
        cuda = self.problem.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize()
        slow, pace = self.runner.slow, self.seconds / self.steps if self.steps else 0.0
        began = time.perf_counter()
        for number in range(self.steps, self.steps + repeat):
            if slow is not None:
                spent = self.seconds + (number - self.steps) * pace
                slow(max(0.0, 1 - spent / self.length))
            self.runner.step(number)
        if cuda:
            torch.cuda.synchronize()
        self.steps += repeat
        return time.perf_counter() - began

    def evaluate(self) -> None:
        """Compute the loss at the nearest point of the manifold, and the distance to it.

        A run that is too far away for that may return later; a run that is not finite has failed.
        """
        Y, error = on_manifold(self.runner.point())
        if error is not None and Y is None:
            self.away = error
            return
        self.away = None
        loss = math.nan if Y is None else self.problem.loss(Y)
        if error is None or not math.isfinite(loss):
            self.failure = f"lost: not finite after {self.steps} steps"
            return
        self.curve.append(
            {"seconds": self.seconds, "steps": self.steps, "loss": loss, "error": error}
        )

    def record(self) -> dict[str, Any]:
        """The run as JSON."""
        failure = self.failure
        if failure is None and self.away is not None:
            failure = f"lost: ||X^T X - I||_F / sqrt(k) = {self.away:.1e} at its end"
        return {"curve": self.curve, "failure": failure}


@dataclass
class Restarted(Racer):
    """The run of a solver that cannot be interrupted: it restarts for every evaluation."""

    solver: Solver = field(kw_only=True)

    def _run(self, until: float) -> None:
        self.seconds, self.steps, point = self.solver.solve(until)
        self.runner = Runner(_no_step, lambda: point)


def _no_step(number: int) -> None:
    """Do nothing, because a solver has no single steps."""


def evaluation_times(seconds: float) -> list[float]:
    """The times at which a run is evaluated.

    Example:
        >>> times = evaluation_times(2.0)
        >>> len(times), round(times[0], 3), times[-1]
        (24, 0.01, 2.0)
    """
    return [seconds * 200 ** (n / (EVALUATIONS - 1) - 1) for n in range(EVALUATIONS)]


@dataclass(frozen=True)
class Setting:
    """A learning rate, as a power of `FACTOR` times the base rate, and a momentum."""

    exponent: float
    momentum: float

    def lr(self, method: Method, problem: Problem) -> float:
        """The learning rate; the factor 1 - momentum keeps the length of steps."""
        kept = 1.0 if method.radians else 1 - self.momentum
        return method.base(problem) * FACTOR**self.exponent * kept


COLD = Setting(-4, 0.0)
"""A setting with which no method diverges."""


def begin(
    problem: Problem,
    method: Method,
    setting: Setting,
    order: int = 0,
    seconds: float = math.inf,
) -> Racer | str:
    """A run of some seconds at its start, with batches in an order; or the reason of a failure."""
    try:
        lr = setting.lr(method, problem)
        return Racer.start(problem, method, lr, setting.momentum, order, seconds)
    except Exception as error:  # as above
        return f"failed: {reason(error)}"


def warm_up(
    problem: Problem,
    method: Method,
    setting: Setting = COLD,
    *,
    steps: int = WARM_UP,
    limit: float = math.inf,
) -> float | str:
    """Take a few steps that are not evaluated, which compiles kernels.

    Args:
        problem: The problem.
        method: The method.
        setting: Its rate and momentum.
        steps: Number of steps.
        limit: Stop early if two steps after the first, which compiles, take longer than this.

    Returns:
        The seconds of the shortest step after the first, zero if there is none; or the failure.
    """
    times: list[float] = []
    try:
        own = problem.fresh()
        made = method.make(own, setting.lr(method, problem), setting.momentum)
        if isinstance(made, Solver):
            made.solve(0.0)
            return 0.0
        racer = Racer(own, made)
        while racer.steps < steps and not (len(times) > 2 and min(times[1:]) > limit):
            times.append(racer.timed(1))
    except Exception as error:  # as above
        return f"failed: {reason(error)}"
    return min(times[1:], default=0.0)


def race(
    racers: Sequence[Racer],
    seconds: float,
    on_evaluation: Callable[[], None],
    solved: float = -math.inf,
) -> None:
    """Advance all runs in turn, from one evaluation to the next.

    Args:
        racers: Runs at their start.
        seconds: Seconds of each run; runs that are done take less.
        on_evaluation: Called `EVALUATIONS` times for each run.
        solved: A run that has reached this loss is done.
    """
    for until in evaluation_times(seconds):
        for racer in racers:
            if racer.problem.device.type == "cpu" and racer.has_turn(until):
                time.sleep(PAUSE)
            racer.advance(until)
            if racer.curve and racer.away is None:
                racer.done = racer.curve[-1]["loss"] <= solved
            on_evaluation()


def gradient_ms(problem: Problem, method: Method) -> float:
    """Milliseconds of a gradient at the start, or of its factors if the method steps by them."""
    own, X = problem.fresh(), problem.start()
    take = own.factors if method.factored and own.is_factored() else own.gradient
    steps: dict[str, Callable[[], object]] = {"gradient": lambda: take(X, 0)}
    times, _ = interleaved(steps, problem.device, rounds=3, seconds=0.02)
    return sorted(times["gradient"])[1]


def peak_bytes(problem: Problem, method: Method, setting: Setting, steps: int) -> int | None:
    """Peak memory of a few steps on CUDA, without the memory of the problem."""
    if problem.device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    warm_up(problem, method, setting, steps=steps)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
