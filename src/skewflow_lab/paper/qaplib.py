"""Quadratic assignment on QAPLIB: our flow beside scipy's FAQ and 2-opt."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skewflow.problems import quadratic_assignment
from skewflow.problems.assignment.solve import improve

from ..data import Instances, default_instances, instance_names, load_instance
from ..data.qaplib import Assignment
from ..runs.experiment import Experiment, Figure, Table, Timing
from ..runs.run import Run
from ..runs.seeds import spawn
from ..runs.threads import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METHODS = {
    "flow": "flow + exchanges (ours)",
    "faq": "FAQ",
    "faq exchanges": "FAQ + our exchanges",
    "random exchanges": "random starts + our exchanges",
    "flow rounded": "flow, rounded, first descent only",
}
"""Methods that run with the same number of restarts, and their names in tables."""
TIMED = {"faq": "FAQ", "faq exchanges": "FAQ + our exchanges", "2opt": "2-opt"}
"""Methods that also run until they have used our time, and their names in tables."""

Permutation = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class QaplibConfig:
    """Assignments of QAPLIB."""

    data: Instances = field(default_factory=default_instances)
    """"qaplib", or "planted" for generated instances with a known optimum."""
    instances: tuple[str, ...] = ()
    """Names of instances; all when empty."""
    restarts: int = 8
    """Number of starts of each method."""
    moves: int = 5000
    """Number of exchanges of the search after each descent."""
    largest_2opt: int = 90
    """Largest number of rows for scipy's 2-opt, of which one run may take 15 s at 100 rows."""
    seed: int = 0
    """Seed of all starts."""


class Qaplib(Experiment[QaplibConfig]):
    """One cell for each instance."""

    name = "qaplib"
    title = "Quadratic assignment: QAPLIB"
    paper = (
        "The paper names assignment among the problems of orthogonal optimisation (Sec. 1), and "
        "gives no numbers."
    )
    presets: Mapping[str, QaplibConfig] = {
        "ci": QaplibConfig(data="planted", restarts=4, moves=200),
        "quick": QaplibConfig(data="planted", moves=1000),
        "paper": QaplibConfig(),
    }

    def cells(self, config: QaplibConfig) -> Sequence[str]:
        """The names of the instances."""
        return config.instances or instance_names(config.data)

    @one_thread()
    def run_cell(self, config: QaplibConfig, cell: str, run: Run) -> dict[str, Any]:
        """Measure gaps with the same restarts, and with the same time, which go to the times."""
        task = load_instance(config.data, cell)
        seed = int(spawn(config.seed, cell).initial_seed() % 2**31)
        rng = np.random.default_rng(seed)
        warm = np.eye(4)
        quadratic_assignment(warm, warm, options={"moves": 10})

        began = time.process_time()
        ours = _flow(task, config, seed, config.moves)
        seconds = time.process_time() - began
        run.time(cell, "flow seconds", seconds)

        began = time.process_time()
        faq = [_faq(task, rng, first=number == 0) for number in range(config.restarts)]
        faq_seconds = time.process_time() - began
        run.time(cell, "faq seconds", faq_seconds)
        began = time.process_time()
        exchanged = _exchanged(task, faq, config, seed)
        both_seconds = faq_seconds + time.process_time() - began
        random = [rng.permutation(len(task.A)) for _ in range(config.restarts)]
        found = {
            "flow": [ours],
            "faq": faq,
            "faq exchanges": [exchanged],
            "random exchanges": [_exchanged(task, random, config, seed)],
            "flow rounded": [_flow(task, config, seed, 0)],
        }
        gaps = {name: min(_gap(task, p) for p in perms) for name, perms in found.items()}

        def faq_once() -> Permutation:
            return _faq(task, rng, first=False)

        def both_once() -> Permutation:
            return _exchanged(task, [faq_once()], config, int(rng.integers(2**31)))

        self._spend(run, task, "faq", faq_once, gaps["faq"], faq_seconds, seconds, config.restarts)
        self._spend(
            run,
            task,
            "faq exchanges",
            both_once,
            gaps["faq exchanges"],
            both_seconds,
            seconds,
            config.restarts,
        )
        if len(task.A) <= config.largest_2opt:
            began = time.process_time()
            first = _gap(task, _two_opt(task, rng))
            spent = time.process_time() - began
            self._spend(run, task, "2opt", lambda: _two_opt(task, rng), first, spent, seconds, 1)
        return {"rows": len(task.A), "best": task.best, "gaps": gaps}

    def _spend(
        self,
        run: Run,
        task: Assignment,
        name: str,
        once: Callable[[], Permutation],
        gap: float,
        spent: float,
        seconds: float,
        restarts: int,
    ) -> None:
        """Restart a rival until it has used as many seconds as we did; record its least gap."""
        began = time.process_time() - spent
        while time.process_time() - began < seconds:
            gap = min(gap, _gap(task, once()))
            restarts += 1
        run.time(task.name, f"{name} timed gap", gap)
        run.time(task.name, f"{name} timed restarts", restarts)

    def summarise(self, config: QaplibConfig, cells: Mapping[str, Any]) -> dict[str, Any]:
        """The gaps of every instance, and each method's median gap and number of solved ones."""
        instances = [{"name": name, **cell} for name, cell in cells.items()]
        return {
            "data": config.data,
            "restarts": config.restarts,
            "instances": instances,
            "methods": {
                name: _statistics([row["gaps"][name] for row in instances]) for name in METHODS
            },
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """The median gaps, in comparison with FAQ's, and the numbers of solved instances."""
        found, count = results["methods"], len(results["instances"])
        ours, faq, both = (found[name]["median"] for name in ("flow", "faq", "faq exchanges"))
        ratio = f"{ours / faq:.0%} of FAQ's" if faq > 0 else "FAQ's is zero, too"
        beside = "not above" if ours <= both else "above"
        solved = ", ".join(
            f"{METHODS[name]} {found[name]['solved']}"
            for name in ("flow", "faq", "faq exchanges", "random exchanges")
        )
        return (
            f"On {count} instances with {results['restarts']} restarts each, our median gap to the "
            f"best known cost is {ours:.3%} ({ratio}; {beside} that of FAQ with our exchanges, "
            f"{both:.3%}). Solved to the best known cost: {solved}. Every cost was computed again "
            "from its permutation, in integers."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of the methods, of the methods with equal time, and of every instance."""
        rows = results["instances"]
        return [
            Table(
                "methods",
                f"Gaps to the best known cost over {len(rows)} instances, "
                f"{results['restarts']} restarts each.",
                ("method", "median gap", "mean gap", "largest gap", "solved"),
                tuple(
                    (METHODS[name], s["median"], s["mean"], s["largest"], s["solved"])
                    for name, s in results["methods"].items()
                ),
            ),
            Table(
                "same-time",
                "Gaps where the rivals continue until they have used at least our processor time "
                "on one thread, and at least as many restarts (2-opt: at least one; without larger "
                "instances). Restarts are medians.",
                ("method", "instances", "median gap", "mean gap", "solved", "restarts"),
                tuple(
                    [_ours_timed(rows)]
                    + [line for name in TIMED if (line := _timed(name, rows, timing))]
                ),
            ),
            Table(
                "instances",
                "Gaps to the best known cost with the same restarts, and seconds of the flow.",
                ("instance", "rows", "best known", *METHODS.values(), "flow s", "FAQ s"),
                tuple(
                    (
                        row["name"],
                        row["rows"],
                        row["best"],
                        *(row["gaps"][name] for name in METHODS),
                        timing.get(row["name"], {}).get("flow seconds"),
                        timing.get(row["name"], {}).get("faq seconds"),
                    )
                    for row in rows
                ),
            ),
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of the fraction of instances that each method solves to a gap."""
        rows = results["instances"]

        def draw(canvas: "Canvas") -> None:
            axis = canvas.subplots()
            share = np.arange(1, len(rows) + 1) / len(rows)
            for name, label in METHODS.items():
                gaps = np.sort([100 * max(row["gaps"][name], 1e-5) for row in rows])
                axis.step(gaps, share, where="post", label=label)
            axis.set_xscale("log")
            axis.set_xlabel("gap to the best known cost, percent (solved: at the left edge)")
            axis.set_ylabel("fraction of instances below")
            axis.set_ylim(0, 1.02)
            axis.legend(loc="lower right")

        caption = f"Instances that each method brings below a gap, {results['restarts']} restarts."
        return [Figure("qaplib", caption, draw, (7.2, 4.4))]


def _flow(task: Assignment, config: QaplibConfig, seed: int, moves: int) -> Permutation:
    options = {"restarts": config.restarts, "moves": moves, "rng": seed}
    perm: Permutation = quadratic_assignment(task.A, task.B, options=options).col_ind
    return perm


def _faq(task: Assignment, rng: np.random.Generator, *, first: bool) -> Permutation:
    from scipy.optimize import quadratic_assignment as scipy_qap  # type: ignore[import-untyped]

    options = {"rng": rng, "P0": "barycenter" if first else "randomized"}
    perm: Permutation = scipy_qap(task.A, task.B, method="faq", options=options).col_ind
    return perm


def _two_opt(task: Assignment, rng: np.random.Generator) -> Permutation:
    from scipy.optimize import quadratic_assignment as scipy_qap

    perm: Permutation = scipy_qap(task.A, task.B, method="2opt", options={"rng": rng}).col_ind
    return perm


def _exchanged(
    task: Assignment, starts: Sequence[Permutation], config: QaplibConfig, seed: int
) -> Permutation:
    return improve(task.A, task.B, np.zeros_like(task.A), starts, config.moves, seed)


def _gap(task: Assignment, perm: Permutation) -> float:
    """The cost of a permutation, recomputed in integers, over the best known one, minus 1."""
    n = len(task.A)
    if sorted(perm.tolist()) != list(range(n)):
        raise AssertionError(f"{task.name}: the result is not a permutation.")
    A, B = task.A.astype(np.int64), task.B.astype(np.int64)
    total = sum(int(A[i] @ B[perm[i], perm]) for i in range(n))
    return (total - task.best) / max(abs(task.best), 1)


def _statistics(gaps: Sequence[float]) -> dict[str, Any]:
    return {
        "median": median(gaps),
        "mean": sum(gaps) / len(gaps),
        "largest": max(gaps),
        "solved": sum(gap <= 0 for gap in gaps),
    }


def _ours_timed(rows: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    s = _statistics([row["gaps"]["flow"] for row in rows])
    return (METHODS["flow"], len(rows), s["median"], s["mean"], s["solved"], None)


def _timed(name: str, rows: Sequence[Mapping[str, Any]], timing: Timing) -> tuple[Any, ...] | None:
    clocks = [timing.get(row["name"], {}) for row in rows]
    gaps = [clock[f"{name} timed gap"] for clock in clocks if f"{name} timed gap" in clock]
    if not gaps:
        return None
    s = _statistics(gaps)
    restarts = median(c[f"{name} timed restarts"] for c in clocks if f"{name} timed gap" in c)
    return (TIMED[name], len(gaps), s["median"], s["mean"], s["solved"], restarts)
