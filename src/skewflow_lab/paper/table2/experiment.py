"""Table 2: sorting numbers by a flow on O(16), stochastic and exact (Sec. 9.3)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import torch

from skewflow.flows import largest_stable_step
from skewflow.geometry import haar

from ...runs.experiment import Experiment, Figure, Table, Timing, Value
from ...runs.files import read_json
from ...runs.run import Run
from ...runs.seeds import spawn
from .sorting_run import SortingRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Method = Literal["matchings", "exp", "taylor"]

DURATION = 50.0
"""Time that every run follows the flow: a run of step size eta has 50 / eta steps."""

STEP_SIZES = (1e-5, 5e-5, 1e-4, 1.5e-4, 1e-3, 1.5e-3, 1e-2, 1.5e-2, 0.1, 0.15)
"""The columns of Table 2."""

METHODS: dict[str, tuple[str, Method, int | None]] = {
    "stochastic": ("stochastic", "matchings", None),
    "exact": ("exact", "exp", None),
    "taylor20": ("Taylor T = 20", "taylor", 20),
    "taylor100": ("Taylor T = 100", "taylor", 100),
}
"""Keys are the names in cells; values are the name in a table, the method of `SortingRun`, and the
number of terms."""

STYLES = ("o-", "o-", "s--", "x--")
"""Distinct markers, for methods with equal curves."""


@dataclass(frozen=True, kw_only=True)
class Table2Config:
    """Sorting by a flow."""

    d: int = 16
    """Numbers in a sequence."""
    num_sequences: int = 10
    """Sequences to average over."""
    step_sizes: tuple[float, ...] = STEP_SIZES
    """Step sizes eta; each run takes 50 / eta steps."""
    ranges: tuple[int, ...] = (10, 1, 100, 10_000)
    """R: the numbers are uniform in [0, R]. The paper does not say how they were drawn."""
    smallest_steps: tuple[float, ...] = (1e-5, 1e-3, 1e-3, 1e-4)
    """The smallest step size for each R."""
    smallest_series: float = 1e-4
    """The smallest step size for the Taylor series."""
    chunk: int = 20_000
    """Steps between two savings; no result depends on it."""
    seed: int = 0
    """Seed of sequences, starts and matchings."""


class Table2(Experiment[Table2Config]):
    """One cell for each R, step size and method."""

    name = "table2"
    title = "Table 2: sorting by a flow"
    paper = (
        "At small steps both integrators stay orthogonal; the stochastic one sorts up to "
        "eta = 0.001 and degrades slowly, the exact one sorts less well and breaks down (nan) from "
        "there on (Table 2, Sec. 9.3). The law of the numbers and the exponential are not stated, "
        "and the printed flow has the wrong sign; ours is the corrected one."
    )
    presets: Mapping[str, Table2Config] = {
        "quick": Table2Config(
            num_sequences=4,
            step_sizes=(1.5e-3, 1e-2, 0.1),
            ranges=(10, 10_000),
            smallest_steps=(1.5e-3, 1.5e-3),
        ),
        "paper": Table2Config(),
    }

    def cells(self, config: Table2Config) -> Sequence[str]:
        """All that are not too small: "R=10,eta=0.001,exact"."""
        return [
            f"R={R},eta={eta:g},{name}"
            for R, smallest in zip(config.ranges, config.smallest_steps, strict=True)
            for eta in config.step_sizes
            for name, (_, method, _) in METHODS.items()
            if eta >= max(smallest, config.smallest_series if method == "taylor" else 0.0)
        ]

    def run_cell(self, config: Table2Config, cell: str, run: Run) -> dict[str, Any]:
        """Follow the flow in chunks, each saved."""
        size, step, name = (part.split("=")[-1] for part in cell.split(","))
        _, method, terms = METHODS[name]
        generator = spawn(config.seed, cell) if method == "matchings" else None
        X0 = haar(
            config.d,
            batch=(config.num_sequences,),
            generator=spawn(config.seed, "starts"),
            dtype=torch.float64,
        )
        q = _sequences(config, int(size))
        flow = SortingRun(q, X0, float(step), method, terms=terms, generator=generator)
        if (state := run.load(cell)) is not None:
            flow.load_state_dict(state)
        num_steps = round(DURATION / flow.eta)
        while flow.step < num_steps:
            flow.advance(min(config.chunk, num_steps - flow.step))
            run.save(cell, flow.state_dict())
            run.progress(flow.step / num_steps)
        scores = flow.scores()
        finite = ~scores.diverged
        result = {
            "epsilon": scores.epsilon[finite].mean().item() if finite.any() else None,
            "inv": scores.inv.mean().item(),
            "least_inv": scores.inv.min().item(),
            "diverged": int(scores.diverged.sum()),
        }
        run.metric(cell, num_steps=num_steps, **result)
        return result

    def summarise(
        self, config: Table2Config, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """For each R the thresholds and one row for each step size."""
        groups = []
        for R in config.ranges:
            q = _sequences(config, R)
            rows = [
                {"eta": eta, "methods": found}
                for eta in config.step_sizes
                if (
                    found := {
                        name: cells[cell]
                        for name in METHODS
                        if (cell := f"R={R},eta={eta:g},{name}") in cells
                    }
                )
            ]
            stable = {
                "stochastic": largest_stable_step(q, scale=config.d - 1 + config.d % 2),
                "exact": largest_stable_step(q),
            }
            thresholds = {name: steps.median().item() for name, steps in stable.items()}
            groups.append({"R": R, "thresholds": thresholds, "rows": rows})
        return {"d": config.d, "num_sequences": config.num_sequences, "groups": groups}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Which R resembles which row of the paper, and what a proper exponential does."""
        groups = results["groups"]
        runs = [(g, row) for g in groups for row in g["rows"]]
        diverged = {
            name: [(g["R"], row["eta"]) for g, row in runs if _diverged(row, name)]
            for name in METHODS
        }
        broken = [f"R = {R:,} from eta = {eta:g}" for R, eta in _first(diverged["taylor100"])]
        series = f"breaks down at {', '.join(broken)}" if broken else "never broke down"
        exponential = diverged["exact"]
        whole = (
            f"left the floating-point numbers in {len(exponential)} of {len(runs)} settings"
            if exponential
            else f"stayed finite in all {len(runs)} settings"
        )
        below: list[float] = []
        above: list[float] = []
        for g, row in runs:
            for name, threshold in g["thresholds"].items():
                stable = row["eta"] < threshold
                (below if stable else above).append(row["methods"][name]["inv"])
        return (
            f"The paper's stochastic row is met best by {_nearest(groups, 'stochastic')}, its "
            f"exact row by {_nearest(groups, 'exact')}; an exact step with a proper exponential "
            f"{whole}, while the naive series of 100 terms {series}; below the stability threshold "
            f"inv is {_range(below)}, above it {_range(above)}."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The scores beside the paper's, and how far each setting is from the paper."""
        told = f"{results['num_sequences']} sequences of {results['d']} numbers"
        return [
            Table(
                "inv",
                f"inv, the fraction of pairs in decreasing order: 1 is sorted, 0.5 random. Mean "
                f"of {told} uniform in [0, R], with 50 / eta steps; a diverged run counts 0, as in "
                "the paper. A dash: not run; the series takes minutes there, and its terms "
                "beyond the tenth are far below rounding.",
                _columns(),
                tuple(_rows(results, "inv")),
            ),
            Table(
                "epsilon",
                f"epsilon = ||X X^T - I||_F at the end, mean of the runs that stayed finite; nan: "
                f"none of {results['num_sequences']} did.",
                _columns(),
                tuple(_rows(results, "epsilon")),
            ),
            Table(
                "distance",
                "How far inv is from the rows of the paper: mean absolute difference over the "
                "step sizes that ran, which differ between the R. The thresholds are the largest "
                "stable step of the flow linearised at the sorted point: "
                "2 / ((d-1)(q_max - q_min)), and d - 1 times less for matchings (not in the paper; "
                "median of the sequences).",
                (
                    "R",
                    "threshold, stochastic",
                    "threshold, exact",
                    *(f"{METHODS[n][0]} to paper's {p}" for n, p in _pairs()),
                ),
                tuple(
                    (
                        g["R"],
                        *g["thresholds"].values(),
                        *(_distance(g["rows"], name, paper) for name, paper in _pairs()),
                    )
                    for g in results["groups"]
                ),
            ),
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The score inv against the step size, a panel for each R, with the thresholds."""

        def draw(canvas: "Canvas") -> None:
            groups = results["groups"]
            wide = min(2, len(groups))
            tall = -(-len(groups) // wide)
            axes = canvas.subplots(tall, wide, sharey=True, squeeze=False).ravel()
            for axis, group in zip(axes, groups, strict=False):
                _panel(axis, group)
            for axis in axes[len(groups) :]:
                axis.set_axis_off()
            handles, labels = axes[0].get_legend_handles_labels()
            canvas.legend(handles, labels, loc="outside lower center", ncols=3)

        caption = (
            "inv against the step size: ours with filled marks, the paper's rows hollow and the "
            "same in each panel, since its R is unknown. Vertical lines: the largest stable step "
            "of the stochastic (dashed) and of the exact integrator (dotted)."
        )
        height = 3.6 if len(results["groups"]) <= 2 else 6.0
        return [Figure("table2", caption, draw, (7.6, height))]


@cache
def printed() -> dict[str, Any]:
    """Table 2 as the paper prints it."""
    table: dict[str, Any] = read_json(Path(__file__).with_name("printed.json"))
    return table


def paper_value(row: str, score: str, eta: float) -> float | None:
    """A value of the paper; None for nan and for step sizes that it does not have."""
    table = printed()
    if eta not in table["eta"]:
        return None
    value: float | None = table[row][score][table["eta"].index(eta)]
    return value


def _sequences(config: Table2Config, R: int) -> torch.Tensor:
    """The same sequences for every R, scaled."""
    generator = spawn(config.seed, "sequences")
    shape = (config.num_sequences, config.d)
    return R * torch.rand(shape, generator=generator, dtype=torch.float64)


def _panel(axis: Any, group: Mapping[str, Any]) -> None:
    for n, (name, (label, _, _)) in enumerate(METHODS.items()):
        rows = [row for row in group["rows"] if name in row["methods"]]
        inv = [row["methods"][name]["inv"] for row in rows]
        axis.semilogx(
            [row["eta"] for row in rows],
            inv,
            STYLES[n],
            color=f"C{n}",
            label=label,
            markersize=(5, 5, 9, 6)[n],
            markerfacecolor="none" if n == 2 else None,
        )
    for n, row in enumerate(("stochastic", "exact")):
        axis.semilogx(
            printed()["eta"],
            printed()[row]["inv"],
            "o:",
            color=f"C{n}",
            markerfacecolor="none",
            linewidth=0.8,
            label=f"paper, {row}",
        )
    for n, (threshold, style) in enumerate(
        zip(group["thresholds"].values(), ("--", ":"), strict=True)
    ):
        axis.axvline(threshold, color=f"C{n}", linestyle=style, linewidth=1.2)
    axis.set(xlabel="step size", ylabel="inv", title=f"R = {group['R']:,}", ylim=(-0.05, 1.05))
    axis.label_outer()


def _columns() -> tuple[str, ...]:
    both = ("stochastic, paper", "stochastic, ours", "exact, paper", "exact, ours")
    return ("R", "eta", *both, *(label for label, _, _ in list(METHODS.values())[2:]))


def _rows(results: Mapping[str, Any], score: str) -> Iterable[tuple[Value, ...]]:
    for group in results["groups"]:
        for row in group["rows"]:
            ours = [_shown(row["methods"].get(name), score) for name in METHODS]
            paper = [_shown_paper(name, score, row["eta"]) for name in ("stochastic", "exact")]
            yield (group["R"], row["eta"], paper[0], ours[0], paper[1], ours[1], *ours[2:])


def _shown(result: Mapping[str, Any] | None, score: str) -> Value:
    if result is None:
        return None
    value: float | None = result[score]
    return "nan" if value is None else value


def _shown_paper(row: str, score: str, eta: float) -> Value:
    value = paper_value(row, score, eta)
    return "nan" if value is None and eta in printed()["eta"] else value


def _pairs() -> list[tuple[str, str]]:
    """Which of our methods is held against which row of the paper."""
    return [(name, "stochastic" if name == "stochastic" else "exact") for name in METHODS]


def _distance(rows: Iterable[Mapping[str, Any]], name: str, paper: str) -> float | None:
    differences = [
        abs(row["methods"][name]["inv"] - value)
        for row in rows
        if name in row["methods"] and (value := paper_value(paper, "inv", row["eta"])) is not None
    ]
    return fmean(differences) if differences else None


def _nearest(groups: Sequence[Mapping[str, Any]], paper: str) -> str:
    """The settings nearest to a row of the paper, at the step sizes that every R has."""
    common = set.intersection(*({row["eta"] for row in g["rows"]} for g in groups))
    found = {}
    for group in groups:
        rows = [row for row in group["rows"] if row["eta"] in common]
        for name, row_of_paper in _pairs():
            distance = _distance(rows, name, paper)
            if row_of_paper == paper and distance is not None:
                found[f"{METHODS[name][0]} at R = {group['R']:,}"] = distance
    if not found:
        return "nothing that can be compared"
    least = min(found.values())
    names = " and ".join(name for name, value in found.items() if value < least + 0.005)
    return f"{names} (inv differs by {least:.2f} on average)"


def _diverged(row: Mapping[str, Any], name: str) -> bool:
    return name in row["methods"] and row["methods"][name]["diverged"] > 0


def _first(cells: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """For each R the smallest step size."""
    least: dict[int, float] = {}
    for R, eta in cells:
        least[R] = min(eta, least.get(R, eta))
    return sorted(least.items())


def _range(values: Sequence[float]) -> str:
    if not values:
        return "not measured"
    least, largest = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == largest else f"{least} to {largest}"
