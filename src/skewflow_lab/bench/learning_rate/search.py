"""One training run at a rate, and the search for the best rate among powers of two."""

import math
from collections.abc import Callable, Iterable
from inspect import signature

import torch
from torch.optim.lr_scheduler import LinearLR

from skewflow.errors import SkewflowError
from skewflow.optim import AngleSGD, FlowSGD

from .tasks import RECURRENT, Task

Loss = float | None
"""None where something was not finite."""
MOMENTUM = 0.9
GRID = (-6, -5, -4, -3, -2)
"""Exponents of the angles that every setting tries."""
MOST = 14
"""Rates of one search."""
DEFAULT: float = signature(AngleSGD).parameters["lr"].default
"""The default learning rate of `AngleSGD`."""


def default_rate(task: str) -> float:
    """The default rate of a task: that of a recurrent net is divided by a quarter of its length."""
    return DEFAULT * 4 / RECURRENT[task] if task in RECURRENT else DEFAULT


def optimizer(weights: list[torch.nn.Parameter], law: str, s: int | str, lr: float) -> AngleSGD:
    """The optimiser of a law: "unbiased", "rms" or "spectral"; exact steps to the nearest point."""
    retraction = {"dense": "polar", "auto": "auto"}.get(str(s), "exp")
    options = {"lr": lr, "momentum": MOMENTUM, "block_size": s, "retraction": retraction}
    if law == "unbiased":
        return FlowSGD(weights, **options)  # type: ignore[arg-type, return-value]
    return AngleSGD(weights, angle=law, **options)  # type: ignore[arg-type]


def train(task: Task, law: str, s: int | str, lr: float, steps: int) -> Loss:
    """The final loss of a run whose rate falls to zero on a line."""
    flow = optimizer(task.weights, law, s, lr)
    schedule = LinearLR(flow, 1.0, 0.0, total_iters=steps)
    try:
        for step in range(steps):
            task.backward(step, 1 - step / steps)
            flow.step()
            schedule.step()
    except SkewflowError:  # a gradient that is not finite
        return None
    loss = task.loss()
    return loss if math.isfinite(loss) else None


def search(evaluate: Callable[[int], Loss], first: Iterable[int]) -> dict[int, Loss]:
    """Losses at exponents: `first`, then on from the best one until its neighbours are worse."""
    found = {exponent: evaluate(exponent) for exponent in first}
    while len(found) < MOST:
        best = best_of(found)
        missing = [e for e in (best - 1, best + 1) if e not in found]
        if not missing:
            break
        found[missing[0]] = evaluate(missing[0])
    return dict(sorted(found.items()))


def best_of(found: dict[int, Loss]) -> int:
    """The exponent of the least loss; of equal ones the first."""
    return min(found, key=lambda e: math.inf if (loss := found[e]) is None else loss)
