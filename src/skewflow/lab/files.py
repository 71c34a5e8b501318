"""Files that are written whole or not at all, and the tables of the repository."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
"""The checkout, when the package runs from one."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a crash, never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def repository_table(name: str) -> Path:
    """The path of benchmarks/data/<name>.csv, in the checkout that this package runs from."""
    folder = ROOT / "benchmarks" / "data"
    if not folder.is_dir():
        raise FileNotFoundError(
            f"numbers are kept in benchmarks/data/{name}.csv of the repository, and skewflow runs "
            f"from {Path(__file__).parents[1]}, which is in no checkout. Install one with "
            "`pip install -e .`, or run without saving."
        )
    return folder / f"{name}.csv"


def append_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows to a CSV file, which they begin when it does not exist yet."""
    if not rows:
        return
    fields = list(rows[0])
    before = path.read_text() if path.exists() else ""
    header = next(csv.reader([before.partition("\n")[0]])) if before else fields
    if header != fields:
        raise ValueError(
            f"the rows of one table must have the same columns: {path} has {', '.join(header)}; "
            f"the new rows have {', '.join(fields)}. Move the old file away."
        )
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    if not before:
        writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, before + text.getvalue())
