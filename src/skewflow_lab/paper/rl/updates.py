"""What one update of the transition costs by the clock, beside the operations of Table 1."""

from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import nn

from skewflow.geometry import haar, omega, project
from skewflow.optim import FlowSGD

from ...measure.timing import interleaved
from ...rl.methods import make_flow
from ...runs.experiment import Table, Timing, Value
from ...runs.seeds import spawn
from ..table1.experiment import PAPER, SETTINGS
from ..table1.operations import ABS, UNIFORM

PERIODS = (20, 10, 8, 5, 4)
METHODS = (ABS, UNIFORM, "exact", *(f"projection p = {p}" for p in PERIODS))
ANGLE = 0.1
"""Spectral norm of eta Omega; it decides how often an exponential is squared."""


def measure(d: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of one update of a d x d matrix by each method, once for each round.

    A projection is timed separately, and the p-th part of it added to a step of SGD.
    """
    generator = spawn(0, "update", d)
    X = haar(d, generator=generator, dtype=torch.float32)
    G = torch.randn(d, d, generator=generator)
    lr = ANGLE / torch.linalg.matrix_norm(omega(X, G), 2).item()

    def stepping(make: Callable[[nn.Parameter], torch.optim.Optimizer]) -> Callable[[], object]:
        W = nn.Parameter(X.clone())
        W.grad = G
        return make(W).step

    off = X - lr * G
    steps: dict[str, Callable[[], object]] = {
        ABS: stepping(lambda W: make_flow(W, "stoch-ortRNN", lr)),
        UNIFORM: stepping(lambda W: FlowSGD([("W", W)], lr, block_size=2, sampler="uniform")),
        "exact": stepping(lambda W: make_flow(W, "exact-ortRNN", lr)),
        "sgd": stepping(lambda W: torch.optim.SGD([W], lr=lr)),
        "project": lambda: project(off),
    }
    times, failures = interleaved(steps, X.device, rounds=rounds, seconds=0.02)
    if failures:
        raise RuntimeError(f"steps that are timed must not fail: {failures}.")
    plain, whole = times.pop("sgd"), times.pop("project")
    for p in PERIODS:
        times[f"projection p = {p}"] = [a + b / p for a, b in zip(plain, whole, strict=True)]
    return times


def readings(times: dict[str, list[float]]) -> dict[str, float]:
    """What goes to the timing: medians, and medians of the ratios inside each round."""
    found = {}
    for method, values in times.items():
        found[f"ms {method}"] = median(values)
        for base in (ABS, UNIFORM):
            pairs = zip(values, times[base], strict=True)
            found[f"{method} over {base}"] = median(a / b for a, b in pairs)
    return found


def table(sizes: Mapping[str, int], timing: Timing) -> Table:
    """One row for each size and method; `sizes` by the names of their cells."""
    rows: list[tuple[Value, ...]] = []
    for cell, d in sizes.items():
        clock = timing.get(cell, {})
        for method in METHODS:
            operations, base = (_paper(name, d) for name in (method, ABS))
            rows.append(
                (
                    d,
                    method,
                    clock.get(f"ms {method}"),
                    clock.get(f"{method} over {ABS}"),
                    clock.get(f"{method} over {UNIFORM}"),
                    operations,
                    operations / base if operations and base else None,
                )
            )
    return Table(
        "updates",
        "Milliseconds of one update of the transition, on one thread, and ratios to both "
        f"stochastic updates (medians over rounds; ||eta Omega|| = {ANGLE:g}); of a projection "
        "every p steps each counts the p-th part. Beside them Table 1 of the paper in 10^4 "
        "operations, bounds from above for s = 2 and from below for the others, and their ratios.",
        (
            "d",
            "method",
            "ms",
            "over s = 2, |x|",
            "over s = 2, uniform",
            "paper: operations",
            "paper: over s = 2",
        ),
        tuple(rows),
    )


def _paper(method: str, d: int) -> float | None:
    """The paper's entry of Table 1; it has h = |x| only, and both samplers stand beside it."""
    column = f"ES-{d}"
    if column not in SETTINGS:
        return None
    return PAPER[ABS if method == UNIFORM else method][list(SETTINGS).index(column)]
