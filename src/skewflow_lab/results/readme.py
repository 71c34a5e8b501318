"""The block of README.md that holds measured numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .page import anchor
from .records import BENCH, Recorded
from .sections import sections
from .tables import Rows, number, tables

BEGIN, END = "<!-- written by `skewflow results` -->", "<!-- to here -->"


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        path: The record, below results.
        what: The quantity that was measured.
        says: Makes the result in words from the tables of the record.
    """

    path: str
    what: str
    says: Callable[[Mapping[str, Rows]], str]


def block(results: Path) -> str:
    """The table with its two marks."""
    records = {record.path: record for record in sections(results)}
    lines = ["| measured | result | command, commit |", "|---|---|---|"]
    lines += [_line(row, records[row.path]) for row in ROWS]
    return "\n".join([BEGIN, *lines, END])


def replaced(readme: str, results: Path) -> str:
    """README.md with a new block."""
    before, rest = readme.split(BEGIN, 1)
    return before + block(results) + rest.split(END, 1)[1]


def _line(row: Row, record: Recorded) -> str:
    command = record.commands[0].split(" -")[0]
    link = f"[{record.commit}](docs/results.md#{anchor(record.title)})"
    return f"| {row.what} | {row.says(tables(record))} | `{command}`, {link} |"


def _find(rows: Rows, **entries: object) -> dict[str, Any]:
    """The row with these entries."""
    return next(row for row in rows if all(row[key] == value for key, value in entries.items()))


def _step(found: Mapping[str, Rows]) -> str:
    row = _find(found["rows"], case="4096x4096")
    names = {"FlowSGD s=2": "s = 2", "FlowSGD s=64": "s = 64", "exact exp": "exact exponential"}
    names |= {"pogo-torch": "pogo-torch", "geoopt RiemannianSGD": "geoopt", "geotorch": "geotorch"}
    return ", ".join(f"{name} {row[key].split('(')[1][:-1]}" for key, name in names.items())


def _training(found: Mapping[str, Rows]) -> str:
    names = {"FlowSGD s=2": "s = 2", "FlowSGD exact": "exact", "pogo-torch": "pogo-torch"}
    names |= {"geoopt RiemannianSGD": "geoopt", "torch orthogonal": "torch's parametrisation"}
    parts = []
    for method, name in names.items():
        row = _find(found["rows"], method=method)
        eager = " (eager)" if row["mode"] == "eager" else ""
        parts.append(f"{name} {row['overhead_percent']:+,.0f}%{eager}")
    return ", ".join(parts)


def _races(found: Mapping[str, Rows]) -> str:
    ratios = {row["problem"]: row["auto / rival"] for row in found["problems"]}
    best, worst = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return f"{number(ratios[best])} ({best}) to {number(ratios[worst])} ({worst})"


def _pca(found: Mapping[str, Rows]) -> str:
    row = _find(found["rows"], problem="online-pca-4000")
    names = {"auto-natural": "natural steps", "auto": "`FlowSGD`", "pogo": "pogo-torch"}
    parts = (f"{name} {number(row[f'{key} seconds'])} s" for key, name in names.items())
    return ", ".join(parts)


def _cifar(found: Mapping[str, Rows]) -> str:
    names = {"s=r": "s = d / ln d", "exact": "exact", "s=2": "s = 2", "vanilla": "free weights"}
    rows = {key: _find(found["methods"], method=key) for key in names}
    return ", ".join(f"{name} {rows[key]['test']:.1f}%" for key, name in names.items())


def _mnist(found: Mapping[str, Rows]) -> str:
    names = {"exact": "exact", "s = r*": "s = d / ln d", "s = 2": "s = 2"}
    names |= {"vanilla SGD, default start": "free weights"}
    rows = {key: _find(found["accuracy"], method=key) for key in names}
    return ", ".join(f"{name} {rows[key]['test at the end']}" for key, name in names.items())


ROWS = (
    Row(f"{BENCH}/step_h200.json", "one step, 4096 x 4096, H200: times torch's SGD", _step),
    Row(
        f"{BENCH}/training_plainnet110_h200.json",
        "training step of PlainNet-110, H200: over SGD",
        _training,
    ),
    Row("quality/h200", "eleven races, H200: time of `auto` over the best rival's", _races),
    Row("quality/cpu", "the same on two cores", _races),
    Row(f"{BENCH}/online_pca.json", "online PCA, 5000 x 4000, H200: time to the gap", _pca),
    Row("cifar/h200", "PlainNet-110, CIFAR-10, one seed: test accuracy", _cifar),
    Row("mnist", "two-layer network, MNIST, five seeds: test accuracy", _mnist),
)
"""At most eight rows."""
