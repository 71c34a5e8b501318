"""Tables of recorded files as Markdown."""

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .records import Recorded

Rows = list[dict[str, Any]]

MOST_ROWS, MOST_COLUMNS = 28, 12
"""Size of the largest table that the page shows; it links to larger ones."""


def tables(record: Recorded) -> dict[str, Rows]:
    """The tables of a record by name, each a list of rows."""
    if record.file.is_dir():
        paths = sorted((record.file / "tables").glob("*.csv"))
        return {path.stem: read_csv(path.read_text(encoding="utf-8")) for path in paths}
    if record.file.suffix == ".csv":
        return {record.file.stem: latest(read_csv(record.file.read_text(encoding="utf-8")))}
    found = {key: value for key, value in record.summary.items() if _is_table(value)}
    return {key: _pivoted(rows) or [flat(row) for row in rows] for key, rows in found.items()}


def _is_table(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def read_csv(text: str) -> Rows:
    """The rows of a CSV file with parsed numbers; a second column of the same name gets a 2."""
    names, *rows = csv.reader(text.splitlines())
    keys = [name if name not in names[:i] else f"{name} 2" for i, name in enumerate(names)]
    return [dict(zip(keys, map(_value, row), strict=True)) for row in rows]


def _value(cell: str) -> Any:
    text = cell.removeprefix("'")  # a quote keeps spreadsheets from reading a formula
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def latest(rows: Rows) -> Rows:
    """The last row of each measurement: benchmarks append to their file."""
    keys = ("benchmark", "case", "method", "unit")
    return list({tuple(row.get(key) for key in keys): row for row in rows}.values())


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A row without nesting: shapes as text, repeated measurements by their median.

    Example:
        >>> flat({"shape": [4, 2], "pogo": {"seconds": [3.0, 1.0, 2.0]}})
        {'shape': '4 x 2', 'pogo seconds': 2.0}
    """
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            found |= flat(value, f"{name} ")
        elif isinstance(value, list) and all(isinstance(x, int) for x in value):
            found[name] = " x ".join(map(str, value))
        elif isinstance(value, list):
            found[name] = statistics.median_low(value)
        else:
            found[name] = value
    return found


def _pivoted(rows: Rows) -> Rows:
    """The rows of `bench step`, one for each case, with a column for each method; else none."""
    if not rows or "ms" not in rows[0] or "case" not in rows[0]:
        return []
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        text = "" if row["ms"] is None else number(row["ms"])
        if row["ms"] is not None and row["method"] != row["base"]:
            text += f" ({number(row['ratio'])})"
        found.setdefault(row["case"], {"case": row["case"]})[row["method"]] = text
    return list(found.values())


def markdown(rows: Rows, columns: Sequence[str] | None = None) -> str:
    """A table; columns that are not in any row are left out."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    if columns is not None:
        names = [name for name in columns if name in names]
    lines = [
        names,
        ["---"] * len(names),
        *([cell(row.get(name)) for name in names] for row in rows),
    ]
    return "".join(f"| {' | '.join(_escaped(line))} |\n" for line in lines)


def _escaped(cells: Iterable[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in cells]


def cell(value: object) -> str:
    """A value as text."""
    if value is None or value == "":
        return "-"
    return number(value) if isinstance(value, (int, float)) else str(value)


def number(value: float) -> str:
    """A number with three digits, or two decimals; whole numbers have all digits.

    Example:
        >>> [number(x) for x in (12800, 0.0123456, 1.5e-12, 80.971, 1234.5)]
        ['12,800', '0.0123', '1.5e-12', '80.97', '1,234']
    """
    if isinstance(value, bool) or math.isnan(value):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e7):
        return f"{int(value):,}"
    if 10 <= abs(value) < 100:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if 1e-3 <= abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.0f}" if 100 <= abs(value) < 1e7 else f"{value:.1e}".replace("e-0", "e-")
