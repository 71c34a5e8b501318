"""The clock of a run, the search for its learning rate, and the race of all.

A clock stands still while a loss is evaluated. On CUDA it runs from one synchronisation to the
next, with many steps between them.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...measure.timing import interleaved, reason
from .methods import Method, Runner, Solver
from .problem import Problem, on_manifold

FACTOR = 10**0.5
"""Between neighbouring learning rates of the search."""
FIRST_RATES = (0, -1, 1)
"""Where a search begins, in factors from a method's base."""
MOST_RATES = 8
"""Learning rates that a search tries with one momentum."""
MOMENTA = (0.0, 0.9)
PROBE = 0.25
"""A trial of the search takes this part of a run's seconds."""
EARLY, HALF = 0.1, 0.5
"""The parts of a trial after which it may be given up."""
SMALLEST_GAP = 1e-9
"""Relative to the start: what is below is rounding."""
LOOKS = 24
"""Evaluations of a run, evenly spaced on a logarithmic scale from 1/200 of it on."""
LITTLE = 0.1
"""The part of a run's steps that it goes on for to be seen at the end of an epoch: those with ten
epochs or more always are. Who has fewer is on his way, where noise is little of a gap."""
PAUSE = 0.04
"""Seconds before a turn on a CPU: the threads of the one before, which may be those of another
library, wait busily for more work for a while, on the same cores."""
WARM_UP = 4
"""Steps of a run that is thrown away before others are timed: they compile kernels, and record
CUDA graphs."""


@dataclass
class Racer:
    """One run of one method: its clock, and what was seen at each look.

    Args:
        problem: The problem, for this run alone.
        runner: The method at work.
        seconds: What its clock shows.
        steps: How many it has taken.
        curve: What was seen.
        failure: Why it stopped, or None.
        away: How far it was at the last look, if that was too far for a loss.
        done: Whether it has nothing left to do.
    """

    problem: Problem
    runner: Runner
    seconds: float = 0.0
    steps: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    failure: str | None = None
    away: float | None = None
    done: bool = False

    @classmethod
    def start(
        cls, problem: Problem, method: Method, lr: float, momentum: float, order: int = 0
    ) -> "Racer":
        """A run at its first point, which is looked at."""
        own = problem.fresh(order)
        made = method.make(own, lr, momentum)
        if isinstance(made, Solver):
            racer: Racer = Restarted(own, Runner(_no_step, own.start), solver=made)
        else:
            racer = cls(own, made)
        racer.look()
        return racer

    def has_turn(self, until: float) -> bool:
        """Whether steps are left to take before the clock shows `until`."""
        return self.failure is None and not self.done and self.seconds < until

    def advance(self, until: float) -> None:
        """Take steps until the clock shows `until`, then look. A failed run does nothing.

        It goes on to the end of an epoch where that is little: over an epoch the noise of its
        batches cancels, and between two ends a gap that is mostly noise goes up and down.
        """
        if not self.has_turn(until):
            return
        try:
            self._run(until)
        except Exception as error:  # a rival's failure is a result; the others go on
            self.failure = f"failed: {reason(error)}"
        else:
            self.look()

    def _run(self, until: float) -> None:
        while self.seconds < until:
            left = (until - self.seconds) * self.steps / self.seconds if self.steps else 0.0
            repeat = max(1, min(round(left), 2 * self.steps))
            self.seconds += self.timed(repeat)
        rest = -self.steps % self.problem.epoch
        if 0 < rest <= LITTLE * self.steps:
            self.seconds += self.timed(rest)

    def timed(self, repeat: int) -> float:
        """Take so many steps; returns the seconds of all."""
        cuda = self.problem.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for number in range(self.steps, self.steps + repeat):
            self.runner.step(number)
        if cuda:
            torch.cuda.synchronize()
        self.steps += repeat
        return time.perf_counter() - began

    def look(self) -> None:
        """Evaluate the loss at the nearest point of the manifold, and the distance to it.

        One who is too far away for that may come back, one whose numbers are not finite does not.
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
    """The run of a solver that cannot stop and go on: it starts anew for each look."""

    solver: Solver = field(kw_only=True)

    def _run(self, until: float) -> None:
        self.seconds, self.steps, point = self.solver.solve(until)
        self.runner = Runner(_no_step, lambda: point)


def _no_step(number: int) -> None:
    """A solver takes none by itself."""


def looks(seconds: float) -> list[float]:
    """The times of a run at which it is looked at.

    Example:
        >>> times = looks(2.0)
        >>> len(times), round(times[0], 3), times[-1]
        (24, 0.01, 2.0)
    """
    return [seconds * 200 ** (n / (LOOKS - 1) - 1) for n in range(LOOKS)]


def climb(score: Callable[[int], float], most: int = MOST_RATES) -> dict[int, float]:
    """Try 0, -1, 1 and then on beyond the better end, until the best has neighbours.

    Args:
        score: Less is better; infinity for a failure.
        most: How many are tried at most.

    Example:
        >>> climb(lambda j: abs(j - 2.2))
        {0: 2.2, -1: 3.2, 1: 1.2000000000000002, 2: 0.20000000000000018, 3: 0.7999999999999998}
    """
    found: dict[int, float] = {}
    todo = [*FIRST_RATES]
    while todo and len(found) < most:
        j = todo.pop(0)
        found[j] = score(j)
        if not todo:
            best = min(found, key=lambda j: (found[j], j))
            if best in (min(found), max(found)):
                todo = [best + (1 if best == max(found) else -1)]
    return found


def searched(method: Method, slow: bool) -> tuple[tuple[float, ...], int]:
    """The momenta that a search tries, and with each of them how many rates at most."""
    if slow:
        return MOMENTA[:1], len(FIRST_RATES)
    return MOMENTA if method.momentum else MOMENTA[:1], MOST_RATES


@dataclass(frozen=True)
class Setting:
    """A learning rate, as a number of factors from the base, and a momentum."""

    exponent: float
    momentum: float

    def lr(self, method: Method, problem: Problem) -> float:
        """The learning rate; momentum makes steps longer, which the base takes back."""
        return method.base(problem) * FACTOR**self.exponent * (1 - self.momentum)


COLD = Setting(-4, 0.0)
"""A setting that no method diverges with."""


def trial(
    problem: Problem, method: Method, setting: Setting, seconds: float, best: float = math.inf
) -> float:
    """The last loss of a short run, or infinity.

    One that has failed after a tenth or a half of it stops there, and so does one that is hopeless
    after a half.

    Args:
        problem: What is minimised.
        method: By whom.
        setting: Its rate and momentum.
        seconds: Of the whole trial; one step at least.
        best: The least loss of the trials before.
    """
    racer = begin(problem, method, setting)
    if isinstance(racer, str):
        return math.inf
    for part in (EARLY, HALF, 1.0):
        racer.advance(part * seconds)
        if racer.failure is not None:
            return math.inf
        loss = math.inf if racer.away is not None else racer.curve[-1]["loss"]
        near = racer.away is None  # one who is far away may come back
        if part == HALF and near and hopeless(loss, racer.curve[0]["loss"], best, problem.optimum):
            break
    return loss


def hopeless(loss: float, start: float, best: float, optimum: float | None) -> bool:
    """Whether half a trial shows that its setting is not the best.

    It is if the loss is above that of the start, or if a second half that gains twice the digits of
    the first, so that the gap becomes its third power, would still end behind the best trial so
    far. A fixed factor between the gaps would give up runs that converge at the pace of the best:
    half way, those have half its digits.

    Args:
        loss: After the half.
        start: The first loss.
        best: The last loss of the best trial so far.
        optimum: The least loss; if nobody knows it, only the start counts.

    Example:
        >>> hopeless(0.05, 1.0, best=1e-4, optimum=0.0), hopeless(0.01, 1.0, 1e-4, 0.0)
        (True, False)
    """
    if loss > start or optimum is None:
        return loss > start
    gap, least = ((value - optimum) / (start - optimum) for value in (loss, best))
    return gap**3 > max(least, SMALLEST_GAP)


def begin(problem: Problem, method: Method, setting: Setting, order: int = 0) -> Racer | str:
    """A run at its start, with batches in the order of that number, or why there is none."""
    try:
        lr = setting.lr(method, problem)
        return Racer.start(problem, method, lr, setting.momentum, order)
    except Exception as error:  # as above
        return f"failed: {reason(error)}"


def finalists(scores: Mapping[Setting, float], deterministic: bool) -> list[Setting]:
    """Who races: the best setting of the trials, rates near it, the best of other momenta.

    A grid may meet or miss a method's best rate, and where it lies is luck: so the rates are half
    a factor apart, and both neighbours run. With batches, a run that is longer than a trial may
    want a much lower rate, since the noise stays with a constant one: that of a whole factor below
    runs, too. Which momentum is better may be luck as well: the best setting with each runs, with
    batches at the lower rates, too.

    Returns:
        The best first, then those with its momentum, then the others; none if all were lost.
    """
    found = sorted((s for s in scores if math.isfinite(scores[s])), key=lambda s: scores[s])
    if not found:
        return []
    best = found[0]
    lower = () if deterministic else (-0.5, -1)
    others = {s.momentum: s for s in reversed(found) if s.momentum != best.momentum}
    chosen = [best, *_beside(best, (0.5, -0.5) if deterministic else (0.5, *lower))]
    for other in others.values():
        chosen += [other, *_beside(other, lower)]
    return chosen


def _beside(setting: Setting, steps: Iterable[float]) -> list[Setting]:
    """The same momentum at other rates."""
    return [Setting(setting.exponent + step, setting.momentum) for step in steps]


def warm_up(
    problem: Problem,
    method: Method,
    setting: Setting = COLD,
    *,
    steps: int = WARM_UP,
    limit: float = math.inf,
) -> float | str:
    """Take a few steps of a run that nobody looks at, which compiles kernels.

    Args:
        problem: What is minimised.
        method: By whom.
        setting: Its rate and momentum.
        steps: How many.
        limit: Two steps that take more seconds each are enough, after the first, which compiles;
            one might have waited for something else.

    Returns:
        The seconds of the shortest step but the first, zero if there is none; or why it failed.
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
    on_look: Callable[[], None],
    solved: float = -math.inf,
) -> None:
    """Let all run for so many seconds each, in turn from one look to the next.

    Args:
        racers: Runs at their start.
        seconds: Of each; those that are done take less.
        on_look: Called `LOOKS` times for each run.
        solved: A run that has come to this loss is done: no target is below.
    """
    for until in looks(seconds):
        for racer in racers:
            if racer.problem.device.type == "cpu" and racer.has_turn(until):
                time.sleep(PAUSE)
            racer.advance(until)
            if racer.curve and racer.away is None:
                racer.done = racer.curve[-1]["loss"] <= solved
            on_look()


def gradient_ms(problem: Problem, method: Method) -> float:
    """Milliseconds of a gradient alone, at the start; of its factors, if the method takes those."""
    own, X = problem.fresh(), problem.start()
    take = own.factors if method.factored and own.is_factored() else own.gradient
    steps: dict[str, Callable[[], object]] = {"gradient": lambda: take(X, 0)}
    times, _ = interleaved(steps, problem.device, rounds=3, seconds=0.02)
    return sorted(times["gradient"])[1]


def peak_bytes(problem: Problem, method: Method, setting: Setting, steps: int) -> int | None:
    """What a few steps take at most beside the problem, on CUDA."""
    if problem.device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    warm_up(problem, method, setting, steps=steps)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
