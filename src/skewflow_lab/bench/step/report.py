"""The table, the CSV rows and the scaling figure of `skewflow bench step`."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Any

from rich.table import Table

from ...measure.timing import percentiles
from ...runs.files import write_atomically
from ..peers.baselines import PARAMETRISATIONS

Row = dict[str, Any]

FIT_FROM = 2048
GREYS = ("#9a9a9a", "#6e6e6e", "#c4c4c4")
BLUES = ("#08306b", "#2171b5", "#6baed6", "#4292c6", "#9ecae1")
COLOURS = ("#d95f02", "#1b9e77", "#e7298a", "#e6ab02", "#7570b3", "#66a61e", "#a6761d", "#b2182b")
MARKERS = "os^vDPX<>"


def heading(result: dict[str, Any]) -> str:
    """The heading of the table, with the machine."""
    return (
        "milliseconds a step (ratio to SGD; of momentum methods to SGD momentum)\n"
        f"{result['environment']['device']}, {result['config']['dtype']}, "
        f"threads: {result['environment']['threads']}, torch's optimisers: {result['torch_step']}"
    )


def table(result: dict[str, Any]) -> Table:
    """A row for each method and a column for each weight: milliseconds, and ratios in brackets."""
    cases = _unique(row["case"] for row in result["rows"])
    found = Table("method")
    for case in cases:
        found.add_column(case, justify="right")
    for method in _unique(row["method"] for row in result["rows"]):
        cells = {row["case"]: _cell(row) for row in result["rows"] if row["method"] == method}
        mark = "*" if method in PARAMETRISATIONS else ""
        found.add_row(method + mark, *(cells[case] for case in cases))
    return found


def notes(result: dict[str, Any]) -> list[str]:
    """Notes under the table: the meaning of *, and why a number is missing."""
    lines = [
        "* a parametrisation: an SGD step on its free parameters, with the recomputation of the "
        "weight and its backward pass"
    ]
    missing: dict[str, dict[str, list[str]]] = {}
    for row in result["rows"]:
        if row["note"]:
            missing.setdefault(row["note"], {}).setdefault(row["method"], []).append(row["case"])
    for note, methods in missing.items():
        by_cases: dict[str, list[str]] = {}
        for method, cases in methods.items():
            by_cases.setdefault(", ".join(cases), []).append(method)
        lines += [f"{', '.join(names)} at {at}: {note}" for at, names in by_cases.items()]
    return lines


def saved_rows(result: dict[str, Any]) -> list[Row]:
    """The measurements as rows of results/bench/step.csv."""
    return [
        {
            **{key: row[key] for key in ("case", "d", "k", "method")},
            "unit": "ms",
            **percentiles(row["times"]),
            "ratio": "" if row["ratio"] is None else f"{row['ratio']:.4g}",
            "base": row["base"],
            "rounds": len(row["times"]),
            "dtype": result["config"]["dtype"],
            "torch_step": result["torch_step"],
            **result["environment"],
        }
        for row in result["rows"]
        if row["ms"] is not None
    ]


def draw(result: dict[str, Any], folder: Path) -> list[Path]:
    """Draw milliseconds against d with fitted exponents, if there are at least two sizes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = [row for row in result["rows"] if row["ms"] is not None and row["d"] is not None]
    rows.sort(key=lambda row: row["d"])
    sizes = _unique(row["d"] for row in rows)
    if len(sizes) < 2:
        return []
    fitted = fit_sizes(sizes)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "skewflow"}):
        figure = Figure(figsize=(9, 5.2), layout="constrained", facecolor="white")
        axis = figure.add_subplot()
        for method, style in _styles(rows).items():
            mine = [row for row in rows if row["method"] == method]
            slope = exponent(rows, method, fitted)
            label = method if slope is None else f"{method}, $d^{{\\,{slope:.1f}}}$"
            axis.loglog([r["d"] for r in mine], [r["ms"] for r in mine], label=label, **style)
        axis.set_xticks(sizes, [str(d) for d in sizes], minor=False)
        axis.minorticks_off()
        environment, config = result["environment"], result["config"]
        columns = "" if config["k"] is None else f", k = {config['k']}"
        side = ", wide" if config["wide"] else ""
        axis.set(xlabel="d", ylabel="milliseconds a step")
        axis.set_title(f"{environment['device']}, {config['dtype']}{columns}{side}", loc="left")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        title = f"exponents fitted over d ≥ {fitted[0]}"
        figure.legend(loc="outside right center", fontsize=8, frameon=False, title=title)
        written = []
        for kind, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
            content = io.BytesIO()
            figure.savefig(content, format=kind, **options)
            written.append(folder / f"step.{kind}")
            write_atomically(written[-1], content.getvalue())
    return written


def fit_sizes(sizes: Sequence[int]) -> list[int]:
    """The sizes for the fit of an exponent: from 2048 on, or the upper half if these are too few.

    Example:
        >>> fit_sizes([256, 512, 1024, 2048, 4096]), fit_sizes([32, 64, 128])
        ([2048, 4096], [64, 128])
    """
    large = [d for d in sizes if d >= FIT_FROM]
    return large if len(large) > 1 else list(sizes[-max(2, len(sizes) // 2) :])


def exponent(rows: Sequence[Row], method: str, sizes: Sequence[int]) -> float | None:
    """The slope of log(ms) against log(d) over these sizes, the exponent of the cost."""
    points = {row["d"]: row["ms"] for row in rows if row["method"] == method and row["d"] in sizes}
    if len(points) < 2:
        return None
    return linear_regression(
        [math.log(d) for d in points], [math.log(ms) for ms in points.values()]
    ).slope


def _styles(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Line styles, ordered by time at the largest size that all methods have, slowest first."""
    methods = _unique(row["method"] for row in rows)
    sizes = [{row["d"] for row in rows if row["method"] == method} for method in methods]
    common = max(set.intersection(*sizes), default=None)
    at = {row["method"]: row["ms"] for row in rows if common is None or row["d"] == common}
    flow = [m for m in methods if m.startswith("FlowSGD")]
    plain = [m for m in methods if m.startswith(("SGD", "AdamW"))]
    rivals = [m for m in methods if m not in flow and m not in plain]
    styles: dict[str, dict[str, Any]] = {}
    for names, colours, line in ((flow, BLUES, "-"), (plain, GREYS, ":"), (rivals, COLOURS, "--")):
        for i, name in enumerate(names):
            styles[name] = {
                "color": colours[i % len(colours)],
                "linestyle": line,
                "linewidth": 2.0 if names is flow else 1.3,
                "marker": MARKERS[i % len(MARKERS)],
                "markersize": 4,
            }
    return {name: styles[name] for name in sorted(styles, key=lambda name: -at[name])}


def _cell(row: Row) -> str:
    if row["ms"] is None:
        return "-"
    return _short(row["ms"]) + ("" if row["ratio"] is None else f" ({_short(row['ratio'])})")


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _unique(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
