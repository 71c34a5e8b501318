"""How much longer the default learning rate of `AngleSGD` takes than the best one of a search."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...data.images import Digits, default_images
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from ...runs.threads import one_thread
from ..quality.suite import SUITE, Size
from .report import NEAR
from .search import DEFAULT, GRID, Loss, best_of, search, train
from .tasks import NETWORKS, SuiteTask, Task

FACTORS = (1.0, 2**0.5, 2.0, 2**1.5, 4.0)
"""Lengths of the runs at the default rate, over that of the runs of the search."""
ENOUGH = 2.0
"""The largest factor that counts as good."""


@dataclass(frozen=True, kw_only=True)
class DefaultRateConfig:
    """Which problems, and how long."""

    problems: tuple[str, ...] = (*SUITE, *NETWORKS)
    """Problems of `bench quality` and networks; those of earlier parts stay, see --resume."""
    size: Size = "reduced"
    """The size of the problems of `bench quality`."""
    width: int = 128
    """Width of the networks."""
    num_steps: int = 200
    """Steps of a run of the search."""
    data: Digits = field(default_factory=default_images)
    """Images of the networks: mnist, or digits in its place."""


class DefaultRate(Experiment[DefaultRateConfig]):
    """A search at a fixed number of steps, then longer and longer runs at the default rate."""

    name = "default-rate"
    group = "bench"
    title = "Steps at the default learning rate of AngleSGD, over those at the best one"
    paper = "Not in the paper, whose learning rates are searched."
    presets: Mapping[str, DefaultRateConfig] = {
        "quick": DefaultRateConfig(
            problems=("procrustes", "ica", "copying", "mlp"),
            size="tiny",
            width=16,
            num_steps=30,
            data="digits",
        ),
        "paper": DefaultRateConfig(),
    }
    preset_help = '"quick" takes seconds, "paper" a quarter of an hour on one core.'
    parts = frozenset({"problems"})

    def cells(self, config: DefaultRateConfig) -> Sequence[str]:
        """One for each problem."""
        unknown = [name for name in config.problems if name not in {*SUITE, *NETWORKS}]
        if unknown:
            known = ", ".join((*SUITE, *NETWORKS))
            raise RunError(f"--problems must be of {known}: got {unknown[0]!r}.")
        return config.problems

    @one_thread()
    def run_cell(self, config: DefaultRateConfig, cell: str, run: Run) -> dict[str, Any]:
        """The search, and runs at the default rate until one reaches what the search reached."""
        make, lr = task_of(cell, config)
        found = search(lambda e: train(make(), "spectral", "auto", 2.0**e, config.num_steps), GRID)
        run.progress(0.5)
        runs: list[dict[str, Any]] = []
        result: dict[str, Any] = {
            "problem": cell,
            "weights": [list(W.shape) for W in make().weights],
            "start": make().loss(),
            "optimum": SUITE[cell].make(config.size, "cpu").optimum if cell in SUITE else 0.0,
            "floor": SUITE[cell].floor if cell in SUITE else 0.0,
            "rates": [{"exponent": e, "loss": loss} for e, loss in found.items()],
            "default": runs,
            "lr": lr,
        }
        for factor in FACTORS:
            steps = round(factor * config.num_steps)
            runs.append({"factor": factor, "loss": train(make(), "spectral", "auto", lr, steps)})
            if reached(result) is not None:
                break
        return result

    def summarise(
        self, config: DefaultRateConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """The factor of each problem."""
        rows = []
        for cell in cells.values():
            best = best_of({r["exponent"]: r["loss"] for r in cell["rates"]})
            gaps = {r["exponent"]: gap(cell, r["loss"]) for r in cell["rates"]}
            rows.append(
                {
                    "problem": cell["problem"],
                    "weights": cell["weights"],
                    "best rate": 2.0**best,
                    "best": gaps[best],
                    "default rate": cell["lr"],
                    "default": gap(cell, cell["default"][0]["loss"]),
                    "factor": reached(cell),
                }
            )
        return {"num_steps": config.num_steps, "rows": rows}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """On how many problems the default takes at most twice the steps."""
        rows = results["rows"]
        slow = [z for z in rows if z["factor"] is None or z["factor"] > ENOUGH]
        names = [f"{z['problem']} ({_times(z['factor'])})" for z in slow]
        but = f"; not on {', '.join(names)}" if slow else ""
        return (
            f"At its default rate of {DEFAULT:g}, falling to zero on a line, AngleSGD reaches what "
            f"the best rate reaches in {results['num_steps']} steps in at most {ENOUGH:g} times "
            f"as many on {len(rows) - len(slow)} of {len(rows)} problems{but}."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """A row for each problem."""
        columns = ("problem", "matrices", "best rate", "best", "default rate", "default", "times")
        rows = tuple(
            (
                z["problem"],
                _shapes(z["weights"]),
                z["best rate"],
                z["best"],
                z["default rate"],
                z["default"],
                z["factor"],
            )
            for z in results["rows"]
        )
        caption = (
            f"The best rate of {results['num_steps']} steps among powers of two, and what is left "
            "at the end: of networks the cross entropy, elsewhere the gap over that of the start. "
            "Beside it the same of the default rate, divided by a quarter of the length for a "
            "recurrent net, and how many times as many steps it takes to come within 10 % of the "
            "best, or to solve the problem; a dash is more than four times."
        )
        return [Table("default-rate", caption, columns, rows)]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """None."""
        return []


def task_of(name: str, config: DefaultRateConfig) -> tuple[Callable[[], Task], float]:
    """What makes a task, and the default rate there."""
    if name in NETWORKS:
        return NETWORKS[name](config.width, config.data), DEFAULT
    problem = SUITE[name].make(config.size, "cpu")
    length: int | None = getattr(getattr(problem, "task", None), "length", None)
    return lambda: SuiteTask(problem), DEFAULT if length is None else DEFAULT * 4 / length


def gap(cell: Mapping[str, Any], loss: Loss) -> float:
    """What is left of the gap of the start; of a network the loss itself.

    If the optimum is unknown, it is the least loss of all runs.
    """
    if loss is None:
        return math.inf
    if cell["problem"] in NETWORKS:
        return loss
    least = cell["optimum"]
    if least is None:
        runs = [*cell["rates"], *cell["default"]]
        least = min(run["loss"] for run in runs if run["loss"] is not None)
    return float((loss - least) / (cell["start"] - least))


def reached(cell: Mapping[str, Any]) -> float | None:
    """The least factor at which the default rate comes near the best one; None if none does."""
    best = min(gap(cell, run["loss"]) for run in cell["rates"])
    enough = max(cell["floor"], NEAR * best)
    good = [run["factor"] for run in cell["default"] if gap(cell, run["loss"]) <= enough]
    return min(good, default=None)


def _times(factor: float | None) -> str:
    return f"more than {FACTORS[-1]:g} times" if factor is None else f"{factor:.3g} times"


def _shapes(weights: Sequence[Sequence[int]]) -> str:
    shapes = [" x ".join(map(str, shape)) for shape in weights]
    kinds = dict.fromkeys(shapes)
    return ", ".join(f"{shapes.count(s)} of {s}" if shapes.count(s) > 1 else s for s in kinds)
