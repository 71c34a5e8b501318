"""The search for the learning rate and momentum of a method."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...runs.run import Run
from .methods import METHODS, Method
from .problem import Problem
from .race import COLD, WARM_UP, Setting, begin, gradient_ms, peak_bytes, warm_up

FIRST_RATES = (0, -1, 1)
"""First exponents of a search, in factors from a method's base rate."""
MOST_RATES = 8
"""Most learning rates that a search tries with one momentum, before it refines the best."""
MOMENTA = (0.0, 0.9)
PROBE = 0.5
"""Seconds of a trial over those of a run. The best rate of a much shorter trial is too large for a
run with batches, whose final loss depends on noise."""
EARLY, HALF = 0.1, 0.5
"""The parts of a trial after which it is evaluated and may be stopped."""
SMALLEST_GAP = 1e-9
"""Gaps below this fraction of the first one are rounding errors."""


def search(
    problem: Problem, name: str, facts: Mapping[str, Any], cell: str, run: Run
) -> dict[str, Any]:
    """Try learning rates, with and without momentum, and choose the setting with the least loss.

    A stopped search continues with its finished trials. If a step takes longer than a trial, a
    trial is one step, and the search tries three rates without momentum.

    Args:
        problem: The problem.
        name: The name of the method.
        facts: The settings of the cell; trials of a stopped search with others are ignored.
        cell: The name of the cell.
        run: The folder of the run.
    """
    method, seconds = METHODS[name], PROBE * facts["seconds"]
    result: dict[str, Any] = {"trials": [], "best": None, "slow": False, "remark": None}
    result |= {"gradient_ms": None, "peak_bytes": None, "excuse": method.excuse(problem)}
    if result["excuse"] is not None:
        return result
    step = warm_up(problem, method, limit=seconds)
    if isinstance(step, str):
        return result | {"excuse": step}
    if not method.rates:
        return result | {"best": named(Setting(0, 0.0), method, problem)}
    result["gradient_ms"] = gradient_ms(problem, method)
    slow = step > seconds
    if slow:
        remark = f"a step takes {step:.2g} s, longer than a trial: one step at each of three rates"
        result |= {"slow": True, "remark": remark}
    stopped = run.load(cell) or {}
    known: dict[str, float] = stopped["scores"] if stopped.get("facts") == facts else {}
    scores: dict[Setting, float] = {}
    momenta = MOMENTA if method.momentum and not slow else MOMENTA[:1]
    most = len(FIRST_RATES) if slow else MOST_RATES

    def score(setting: Setting) -> float:
        key = f"{setting.exponent} {setting.momentum}"
        if key not in known:
            best = min(known.values(), default=math.inf)
            known[key] = trial(problem, method, setting, seconds, best)
            run.save(cell, {"facts": facts, "scores": known})
        scores[setting] = known[key]
        run.progress(min(len(scores) / (6 * len(momenta)), 1))
        return known[key]

    for momentum in momenta:
        if momentum:  # steps with momentum use other kernels
            warm_up(problem, method, replace(COLD, momentum=momentum))
        climb(lambda j, momentum=momentum: score(Setting(j, momentum)), most)  # type: ignore[misc]
    best = min(scores, key=lambda setting: scores[setting])
    if not slow and math.isfinite(scores[best]):
        for step_to in (0.5, -0.5):
            score(replace(best, exponent=best.exponent + step_to))
        best = min(scores, key=lambda setting: scores[setting])
    trials = [named(s, method, problem) | {"loss": _finite(scores[s])} for s in scores]
    result["trials"] = trials
    if not math.isfinite(scores[best]):
        return result | {"excuse": "lost at every learning rate that was tried"}
    peak = peak_bytes(problem, method, best, steps=1 if slow else WARM_UP)
    return result | {"best": named(best, method, problem), "peak_bytes": peak}


def named(setting: Setting, method: Method, problem: Problem) -> dict[str, float | None]:
    """A setting as JSON; methods without learning rates have None."""
    lr = setting.lr(method, problem) if method.rates else None
    return {"exponent": setting.exponent, "momentum": setting.momentum, "lr": lr}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def climb(score: Callable[[int], float], most: int = MOST_RATES) -> dict[int, float]:
    """Try 0, -1, 1, and then exponents beyond the better end, until the best has neighbours.

    Args:
        score: The loss of a trial; infinity for a failure.
        most: Largest number of trials.

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


def trial(
    problem: Problem, method: Method, setting: Setting, seconds: float, best: float = math.inf
) -> float:
    """The last loss of a short run, or infinity if it fails.

    A failed trial stops after a tenth or a half of its time, a hopeless one after a half.

    Args:
        problem: The problem.
        method: The method.
        setting: Its rate and momentum.
        seconds: Seconds of the trial, which takes at least one step.
        best: The least loss of earlier trials.
    """
    racer = begin(problem, method, setting, seconds=seconds)
    if isinstance(racer, str):
        return math.inf
    for part in (EARLY, HALF, 1.0):
        racer.advance(part * seconds)
        if racer.failure is not None:
            return math.inf
        loss = math.inf if racer.away is not None else racer.curve[-1]["loss"]
        near = racer.away is None  # a run far away may return
        if part == HALF and near and hopeless(loss, racer.curve[0]["loss"], best, problem.optimum):
            break
    return loss


def hopeless(loss: float, start: float, best: float, optimum: float | None) -> bool:
    """Whether half a trial shows that its setting is not the best.

    A trial is hopeless if its loss is above the first one. It is also hopeless if it would end
    behind the best trial even if its second half gained twice the digits of the first, which gives
    the third power of its gap. A fixed factor between gaps would stop runs that converge as fast as
    the best one: after half of the time they have half of its digits.

    Args:
        loss: The loss after half a trial.
        start: The first loss.
        best: The last loss of the best trial.
        optimum: The least loss, or None if it is unknown; then only the start counts.

    Example:
        >>> hopeless(0.05, 1.0, best=1e-4, optimum=0.0), hopeless(0.01, 1.0, 1e-4, 0.0)
        (True, False)
    """
    if loss > start or optimum is None:
        return loss > start
    gap, least = ((value - optimum) / (start - optimum) for value in (loss, best))
    return gap**3 > max(least, SMALLEST_GAP)
