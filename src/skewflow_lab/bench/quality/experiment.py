"""The suite as an experiment: a cell for each search, then one for the race of each problem.

A race has three heats: all run, the leaders again at other rates, then those in front several
times.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from skewflow.geometry.precision import full_precision

from ...runs.environment import check_device
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from . import report
from .finished import Finished, asked
from .heats import first_heat, last_heat, second_heat
from .methods import METHODS, Method
from .problem import Problem, on_manifold
from .race import (
    COLD,
    LOOKS,
    PROBE,
    WARM_UP,
    Racer,
    Setting,
    begin,
    climb,
    finalists,
    gradient_ms,
    peak_bytes,
    race,
    searched,
    trial,
    warm_up,
)
from .standing import LAST, solved_at
from .suite import SUITE, Size

START = 1e-4
"""The largest distance of a start to the manifold, over sqrt(k)."""


@dataclass(frozen=True, kw_only=True)
class QualityConfig:
    """Who races on what, where, and for how long."""

    problems: tuple[str, ...] = tuple(SUITE)
    """Problems; those of earlier parts of a run stay in its folder, so that a run can be made in
    parts with --resume, and a last call without --problems gathers them."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Methods: FlowSGD's (auto, s=2, s=16, s=64, dense, factored), FlowAdam's (auto-adam), natural
    steps (auto-natural), and the rivals'."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    """Where everything runs."""
    size: Size = "full"
    """The sizes of the problems' authors, sizes for two cores, or for a look at whether it runs."""
    seconds: float | None = None
    """Of each run in the race; those of the suite when omitted. A trial takes a quarter."""


class Quality(Experiment[QualityConfig]):
    """Each method searches its learning rate alone; then all race, in turn, from the same start.

    The leaders of a race run again, at rates between those that ran (`second_heat`), and those in
    front then several times (`last_heat`), which counts.

    Everything here is read off a clock, so that the summary of a second run is another one.
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
        """For each problem the searches, then the race."""
        check(config)
        return [
            name
            for problem in config.problems
            for name in (*(f"{problem}_{m}" for m in config.methods), f"{problem}_race")
        ]

    def machine(self, config: QualityConfig) -> Collection[str]:
        """Seconds of different machines are not of one table."""
        return ("device",) if config.device == "cuda" else ("device", "threads")

    def check_finished(self, config: QualityConfig, run: Run) -> None:
        """The cells of each problem must be of this suite, whole, and of one another."""
        for name in config.problems:
            entry = SUITE[name]
            Finished(
                {m: METHODS[m] for m in config.methods},
                asked(entry, config.size, config.seconds),
                deterministic=entry.kind.deterministic,
                cuda=config.device == "cuda",
            ).check(name, run)

    def run_cell(self, config: QualityConfig, cell: str, run: Run) -> dict[str, Any]:
        """A search, or a race."""
        name, _, what = cell.partition("_")
        problem, start = _problem(name, config.size, config.device)
        facts = asked(SUITE[name], config.size, config.seconds)
        facts |= {"shape": list(problem.shape), "start": start, "optimum": problem.optimum}
        with full_precision():
            if what == "race":
                return self._race(config, name, problem, facts, run)
            return facts | _search(problem, what, facts, cell, run)

    def _race(
        self, config: QualityConfig, name: str, problem: Problem, facts: dict[str, Any], run: Run
    ) -> dict[str, Any]:
        start, seconds = facts["start"], facts["seconds"]
        searches = {m: run.result(f"{name}_{m}") or {} for m in config.methods}
        settings = {
            method: [Setting(each["exponent"], each["momentum"]) for each in finalists]
            for method, finalists in first_heat(searches, start, problem.optimum).items()
        }
        for method, chosen in settings.items():
            if not searches[method]["slow"]:  # by seconds, not by what is compiled
                for momentum in sorted({setting.momentum for setting in chosen}):
                    warm_up(problem, METHODS[method], replace(COLD, momentum=momentum))
        solved = solved_at(facts)
        result = facts | {"runs": _heat(1, problem, settings, seconds, solved, run)}
        ours = [m for m in config.methods if METHODS[m].ours]
        result["runs"] += _heat(2, problem, second_heat(result, ours), seconds, solved, run)
        result["runs"] += _heat(LAST, problem, last_heat(result, ours), seconds, solved, run)
        return result

    def summarise(
        self, config: QualityConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Of each problem the target, and how each method came to it."""
        return {
            "device": config.device,
            "problems": [
                report.problem_summary(
                    name,
                    cells[f"{name}_race"],
                    {m: cells[f"{name}_{m}"] for m in config.methods},
                    [m for m in config.methods if METHODS[m].ours],
                )
                for name in config.problems
            ],
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """How "auto" compares with the best rival, and with our other choices."""
        return report.verdict(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The problems, and every cell."""
        return report.tables(results)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """Gap against seconds."""
        return report.figures(results)


def check(config: QualityConfig) -> None:
    """Refuse what cannot run, before anything is written."""
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


def _search(
    problem: Problem, name: str, facts: Mapping[str, Any], cell: str, run: Run
) -> dict[str, Any]:
    """Try learning rates, with and without momentum; trials that are done are not done again.

    Those of a stopped search that was asked for something else do not count.

    Where a step takes longer than a trial, a trial is one step, in which momentum is nothing: the
    first three rates are tried without, and the best of them races alone.
    """
    method, seconds = METHODS[name], PROBE * facts["seconds"]
    result: dict[str, Any] = {"trials": [], "finalists": [], "slow": False, "remark": None}
    result |= {"gradient_ms": None, "peak_bytes": None}
    result["excuse"] = method.excuse(problem)
    if result["excuse"] is not None:
        return result
    step = warm_up(problem, method, limit=seconds)
    if isinstance(step, str):
        return result | {"excuse": step}
    if not method.rates:
        return result | {"finalists": [_named(Setting(0, 0.0), method, problem)]}
    result["gradient_ms"] = gradient_ms(problem, method)
    stopped = run.load(cell) or {}
    known: dict[str, float] = stopped["scores"] if stopped.get("facts") == facts else {}
    scores: dict[Setting, float] = {}
    if step > seconds:
        result |= {"slow": True, "remark": report.slow(step)}
    momenta, most = searched(method, result["slow"])
    for momentum in momenta[1:]:  # has other kernels
        warm_up(problem, method, replace(COLD, momentum=momentum))
    for turn, momentum in enumerate(momenta):

        def score(exponent: int, momentum: float = momentum, turn: int = turn) -> float:
            key = f"{exponent} {momentum}"
            if key not in known:
                best = min(known.values(), default=math.inf)
                known[key] = trial(problem, method, Setting(exponent, momentum), seconds, best)
                run.save(cell, {"facts": facts, "scores": known})
            part = len([k for k in known if k.endswith(f" {momentum}")]) / 6
            run.progress((turn + min(part, 1)) / len(momenta))
            return known[key]

        scores |= {Setting(j, momentum): value for j, value in climb(score, most).items()}
    result["trials"] = [_named(s, method, problem) | {"loss": _finite(scores[s])} for s in scores]
    chosen = finalists(scores, problem.deterministic)[: 1 if result["slow"] else None]
    if not chosen:
        return result | {"excuse": "lost at every learning rate that was tried"}
    result["finalists"] = [_named(setting, method, problem) for setting in chosen]
    peak = peak_bytes(problem, method, chosen[0], steps=1 if result["slow"] else WARM_UP)
    return result | {"peak_bytes": peak}


def _heat(
    number: int,
    problem: Problem,
    settings: Mapping[str, Sequence[Setting]],
    seconds: float,
    solved: float,
    run: Run,
) -> list[dict[str, Any]]:
    """All settings of all methods run, in turn; what they did. Equal ones have other orders."""
    runs: list[dict[str, Any]] = []
    racers: list[Racer] = []
    for method, chosen in settings.items():
        for n, setting in enumerate(chosen):
            racer = begin(problem, METHODS[method], setting, chosen[:n].count(setting))
            runs.append({"method": method, "heat": number})
            runs[-1] |= _named(setting, METHODS[method], problem)
            if isinstance(racer, str):
                runs[-1] |= {"curve": [], "failure": racer}
            else:
                runs[-1]["racer"] = racer
                racers.append(racer)
    done, total = 0, LOOKS * max(1, len(racers))

    def on_look() -> None:
        nonlocal done
        done += 1
        run.progress((number - 1 + done / total) / LAST)

    race(racers, seconds, on_look, solved)
    for each in runs:
        if "racer" in each:
            each |= each.pop("racer").record()
    return runs


def _named(setting: Setting, method: Method, problem: Problem) -> dict[str, float | None]:
    lr = setting.lr(method, problem)
    return {
        "exponent": setting.exponent,
        "momentum": setting.momentum,
        "lr": lr if method.rates else None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@lru_cache(maxsize=1)
def _problem(name: str, size: Size, device: str) -> tuple[Problem, float]:
    """A problem and its first loss; the cells of one come one after the other."""
    problem = SUITE[name].make(size, device)
    with full_precision():
        return problem, problem.fresh().loss(_first_point(name, problem))


def _first_point(name: str, problem: Problem) -> Tensor:
    """The start in float64; a start that is off the manifold is found before anybody runs."""
    point, error = on_manifold(problem.start())
    if point is None or error is None or error > START:
        far = "not finite" if error is None else f"{error:.1e}"
        raise RunError(
            f"the start of {name} must be orthonormal: ||X^T X - I||_F / sqrt(k) is {far}, above "
            f"{START:.0e}. That is an error of the problem; --problems names others."
        )
    return point
