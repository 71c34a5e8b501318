"""`skewflow bench online-pca`: seconds until online PCA is solved to a gap, beside pogo-torch."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Literal

import torch

from ..runs.environment import environment
from ..runs.files import RunError, recorded, write_json
from .command import DEVICE, Device, check_rounds, show
from .quality.methods import METHODS
from .quality.problem import Problem
from .quality.race import Racer, Setting, begin, warm_up
from .quality.search import climb
from .quality.standing import reached
from .quality.suite import SUITE

ProblemName = Literal["online-pca-4000", "online-pca-1000"]
GAPS: dict[ProblemName, float] = {"online-pca-4000": 0.05, "online-pca-1000": 0.03}
"""The gap to reach on each problem, relative to the gap of the start."""
LONGEST = 3.0
"""Seconds after which a run stops."""
EVALUATIONS = 60
"""Evaluations of a run of that length, evenly spaced on a logarithmic scale from 1/300 of it on."""
NAMES = ("auto", "auto-natural", "pogo")
"""The methods that are compared."""


def online_pca(
    problems: tuple[ProblemName, ...] = tuple(GAPS),
    device: Device = DEVICE,
    rounds: int = 3,
    save: bool = False,
) -> None:
    """Time online PCA on 15000 samples of 5000 features in batches of 128, to a given gap.

    Each method searches its learning rate, with and without momentum, for the least time to the
    gap; then the best settings of all methods run in interleaved rounds. Ours are FlowSGD with the
    block size "auto", and natural steps, which have no momentum. Gradients, POGO's steps and the
    directions of FlowSGD's exact steps may use TF32; factored steps are as exact as in float32. The
    clock stops while a loss is evaluated.

    Args:
        problems: Numbers of components.
        device: "cpu" takes tiny sizes.
        rounds: Interleaved rounds; numbers are medians over them.
        save: Write results/bench/online_pca.json of the repository.
    """
    check_rounds(device, rounds, save)
    rows = []
    for name in problems:
        rows.append(_measure(name, GAPS[name], device, rounds))
        show(json.dumps(rows[-1]))
    if save:
        write_json(recorded("online_pca.json"), {"environment": environment(device), "rows": rows})


@contextmanager
def _tf32_products() -> Iterator[None]:
    """Let float32 products use TF32 unless the code inside asks for more."""
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _seconds_to(
    problem: Problem, name: str, setting: Setting, gap: float, longest: float
) -> tuple[float, Racer | None]:
    """Seconds to the gap; `longest` plus the last gap if a run misses it; infinity if it fails."""
    racer = begin(problem, METHODS[name], setting)
    if isinstance(racer, str):
        return math.inf, None
    optimum = problem.optimum
    assert optimum is not None
    scale = racer.curve[0]["loss"] - optimum
    points = [(0.0, 0.0, 1.0)]
    for n in range(EVALUATIONS):
        with _tf32_products():
            racer.advance(LONGEST * 300 ** (n / (EVALUATIONS - 1) - 1))
        if racer.failure is not None or racer.away is not None:
            return math.inf, None
        last = racer.curve[-1]
        points.append((last["seconds"], last["steps"], (last["loss"] - optimum) / scale))
        if (found := reached(points, gap)) is not None:
            return found[0], racer
        if last["seconds"] > longest:
            break
    return longest + points[-1][2], None


def _search(problem: Problem, name: str, gap: float) -> tuple[Setting, float]:
    """The setting that reaches the gap first; slower settings stop at twice its time."""
    best = Setting(0, 0.0), math.inf
    for momentum in (0.0, 0.9) if METHODS[name].momentum else (0.0,):
        with _tf32_products():
            warm_up(problem, METHODS[name], Setting(-4, momentum))

        def score(exponent: float, momentum: float = momentum) -> float:
            nonlocal best
            setting = Setting(exponent, momentum)
            taken, _ = _seconds_to(problem, name, setting, gap, min(LONGEST, 2 * best[1]))
            best = min(best, (setting, taken), key=lambda each: each[1])
            return taken

        found = climb(score)
        top = min(found, key=lambda j: (found[j], j))
        for step in (-0.5, 0.5):
            score(top + step)
    return best


def _measure(name: str, gap: float, device: str, rounds: int) -> dict[str, Any]:
    """Search a setting for each method, then time all of them in turn."""
    problem = SUITE[name].make("full" if device == "cuda" else "tiny", device)
    chosen = {method: _search(problem, method, gap)[0] for method in NAMES}
    times: dict[str, list[float]] = {method: [] for method in NAMES}  # infinity: the gap was missed
    row: dict[str, Any] = {"problem": name, "shape": list(problem.shape), "gap": gap}
    for _ in range(rounds):
        for method, setting in chosen.items():
            taken, racer = _seconds_to(problem, method, setting, gap, LONGEST)
            times[method].append(taken if racer is not None else math.inf)
            if racer is not None:
                row[method] = {
                    "lr": setting.lr(METHODS[method], problem),
                    "momentum": setting.momentum,
                    "steps": racer.steps,
                    "error": racer.curve[-1]["error"],
                    "seconds": times[method],
                }
    middle = {method: median(each) for method, each in times.items()}
    missed = [method for method, seconds in middle.items() if not math.isfinite(seconds)]
    if missed:
        raise RunError(
            f"{' and '.join(missed)} must reach the gap {gap} within {LONGEST} s on {name}."
        )
    ours = [method for method in NAMES if METHODS[method].ours]
    return row | {f"pogo / {method}": middle["pogo"] / middle[method] for method in ours}
