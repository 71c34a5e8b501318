"""The suite as an experiment: a cell for each search, then one for the final of each problem."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from skewflow.geometry.precision import full_precision

from ...runs.environment import check_device
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from . import figure, report
from .methods import METHODS
from .problem import Problem, on_manifold
from .race import EVALUATIONS, Racer, Setting, begin, race
from .search import named, search
from .standing import solved_at
from .suite import SUITE, Size

START = 1e-4
"""Largest distance of a start to the manifold, over sqrt(k)."""
SEEDS = 3
"""Runs of each method in a final, with batches in as many orders; their median counts."""
RULES = 3
"""The version of the protocol; cells of another version are refused."""


@dataclass(frozen=True, kw_only=True)
class QualityConfig:
    """The problems, the methods, the device and the seconds of a run."""

    problems: tuple[str, ...] = tuple(SUITE)
    """Problems. A run can be split into several calls with --resume; a last call without --problems
    collects all cells."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Methods: FlowSGD's (auto, s=2, s=16, s=64, dense, factored), FlowAdam's (auto-adam), natural
    steps (auto-natural), AngleSGD's (auto-angle), and the rivals'."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    """The device of all runs."""
    size: Size = "full"
    """The sizes of the problems' authors, sizes for two cores, or sizes that only test the code."""
    seconds: float | None = None
    """Seconds of each run in a final, by default those of the suite. A trial takes half of them."""


class Quality(Experiment[QualityConfig]):
    """Each method searches its learning rate; then all race from the same start, three times.

    The results are times, so the summary of a second run differs.
    """

    name = "quality"
    group = "bench"
    title = "Seconds to a gap, beside everything else that keeps matrices orthogonal"
    paper = "Not in the paper: the problems are those of the rivals' papers and codes."
    presets: Mapping[str, QualityConfig] = {
        "quick": QualityConfig(device="cpu", size="tiny", seconds=0.1),
        "cpu": QualityConfig(device="cpu", size="reduced"),
        "paper": QualityConfig(device="cuda"),
    }
    preset_help = '"quick" takes minutes on a CPU, "cpu" an hour on two cores, "paper" needs a GPU.'
    parts = frozenset({"problems"})

    def cells(self, config: QualityConfig) -> Sequence[str]:
        """The searches of each problem, followed by its final."""
        check(config)
        return [
            name
            for problem in config.problems
            for name in (*(f"{problem}_{m}" for m in config.methods), f"{problem}_final")
        ]

    def machine(self, config: QualityConfig) -> Collection[str]:
        """The device, and on a CPU the threads: other times would not be comparable."""
        return ("device",) if config.device == "cuda" else ("device", "threads")

    def check_finished(self, config: QualityConfig, run: Run) -> None:
        """Check that finished cells belong to this suite, and finals to their searches."""
        for name in config.problems:
            facts = _facts(name, config)
            final = run.result(f"{name}_final")
            searches = {m: run.result(f"{name}_{m}") for m in config.methods}
            for what, found in (("final", final), *searches.items()):
                wrong = [] if found is None else [k for k in facts if found.get(k) != facts[k]]
                if found is not None and wrong:
                    rule = f"made with {wrong[0]} {facts[wrong[0]]}: got {found.get(wrong[0])}"
                    raise _refused(run, f"{name}_{what}", name, rule)
            if final is not None and final["settings"] != _settings(searches):
                raise _refused(run, f"{name}_final", name, "made after the searches beside it")

    def run_cell(self, config: QualityConfig, cell: str, run: Run) -> dict[str, Any]:
        """Run a search or a final."""
        name, _, what = cell.partition("_")
        problem, start = _problem(name, config.size, config.device)
        facts = _facts(name, config)
        facts |= {"shape": list(problem.shape), "start": start, "optimum": problem.optimum}
        with full_precision():
            if what != "final":
                return facts | search(problem, what, facts, cell, run)
            settings = _settings({m: run.result(f"{name}_{m}") for m in config.methods})
            runs = _final(problem, settings, facts["seconds"], solved_at(facts), run)
            return facts | {"settings": settings, "runs": runs}

    def summarise(
        self, config: QualityConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """The target of each problem, and the time of each method to it."""
        return {
            "device": config.device,
            "problems": [
                report.problem_summary(
                    name,
                    cells[f"{name}_final"],
                    {m: cells[f"{name}_{m}"] for m in config.methods},
                    [m for m in config.methods if METHODS[m].ours],
                )
                for name in config.problems
            ],
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Compare "auto" with the best rival and with our other settings, in words."""
        return report.verdict(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of the problems and of all cells."""
        return report.tables(results)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of the gap against seconds."""
        return figure.figures(results)


def check(config: QualityConfig) -> None:
    """Raise for options that cannot run, before anything is written."""
    check_device(config.device)
    for flag, given, known in (
        ("problems", config.problems, SUITE),
        ("methods", config.methods, METHODS),
    ):
        wrong = [name for name in given if name not in known]
        if wrong or not given:
            raise RunError(
                f"--{flag} must be some of {', '.join(known)}: got {', '.join(wrong) or 'none'}."
            )
    if config.seconds is not None and not 0 < config.seconds < math.inf:
        raise RunError(f"--seconds must be above 0 and finite: got {config.seconds}.")


def _facts(name: str, config: QualityConfig) -> dict[str, Any]:
    """The settings that every cell of a problem records."""
    entry = SUITE[name]
    return {
        "rules": RULES,
        "sizes": json.loads(json.dumps(entry.sizes(config.size))),  # as they come from a file
        "seconds": config.seconds or entry.budget(config.size),
        "floor": entry.floor,
    }


def _settings(searches: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """The best setting of each method that has one."""
    return {m: found["best"] for m, found in searches.items() if found and found["best"]}


def _refused(run: Run, cell: str, problem: str, rule: str) -> RunError:
    path = run.file(cell)
    return RunError(
        f"{path} must be {rule}. Remove all cells of that problem, {path.parent / problem}_*, "
        "and --resume repeats them; or write elsewhere with --out."
    )


def _final(
    problem: Problem,
    settings: Mapping[str, Mapping[str, Any]],
    seconds: float,
    solved: float,
    run: Run,
) -> list[dict[str, Any]]:
    """Run every method with its best setting, once for each order of the batches, in turn."""
    runs: list[dict[str, Any]] = []
    racers: list[Racer] = []
    for seed in range(SEEDS):
        for method, best in settings.items():
            setting = Setting(best["exponent"], best["momentum"])
            racer = begin(problem, METHODS[method], setting, seed, seconds)
            runs.append(
                {"method": method, "seed": seed, **named(setting, METHODS[method], problem)}
            )
            if isinstance(racer, str):
                runs[-1] |= {"curve": [], "failure": racer}
            else:
                runs[-1]["racer"] = racer
                racers.append(racer)
    done, total = 0, EVALUATIONS * max(1, len(racers))

    def on_evaluation() -> None:
        nonlocal done
        done += 1
        run.progress(done / total)

    race(racers, seconds, on_evaluation, solved)
    for each in runs:
        if "racer" in each:
            each |= each.pop("racer").record()
    return runs


@lru_cache(maxsize=1)
def _problem(name: str, size: Size, device: str) -> tuple[Problem, float]:
    """A problem and its first loss, cached because all of its cells run in succession."""
    problem = SUITE[name].make(size, device)
    with full_precision():
        return problem, problem.fresh().loss(_first_point(name, problem))


def _first_point(name: str, problem: Problem) -> Tensor:
    """The start in float64.

    Raises:
        RunError: If it is not on the manifold.
    """
    point, error = on_manifold(problem.start())
    if point is None or error is None or error > START:
        far = "not finite" if error is None else f"{error:.1e}"
        raise RunError(
            f"the start of {name} must be orthonormal: ||X^T X - I||_F / sqrt(k) is {far}, above "
            f"{START:.0e}. That is an error of the problem; --problems names others."
        )
    return point
