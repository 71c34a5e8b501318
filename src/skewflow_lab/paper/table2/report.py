"""Verdict, tables and figure of the sorting runs."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from ...runs.experiment import Figure, Table, Value
from ...runs.files import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Method = Literal["matchings", "exp", "taylor"]

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


def verdict_of(results: Mapping[str, Any]) -> str:
    """Which R resembles which row of the paper, and the effect of an exact exponential."""
    groups = results["groups"]
    runs = [(g, row) for g in groups for row in g["rows"]]
    diverged = {
        name: [(g["R"], row["eta"]) for g, row in runs if _diverged(row, name)] for name in METHODS
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


def tables_of(results: Mapping[str, Any]) -> list[Table]:
    """The tables of the scores beside the paper's, and of the differences from the paper."""
    runs = f"{results['num_sequences']} sequences of {results['d']} numbers"
    return [
        Table(
            "inv",
            f"inv, the fraction of pairs in decreasing order: 1 is sorted, 0.5 random. Mean "
            f"of {runs} uniform in [0, R], with 50 / eta steps; a diverged run counts 0, as in "
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


def figures_of(results: Mapping[str, Any]) -> list[Figure]:
    """The figure of inv against the step size, with a panel for each R and the thresholds."""

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
    """Pairs of one of our methods and the row of the paper to compare it with."""
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
