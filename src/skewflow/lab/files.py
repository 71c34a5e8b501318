"""The files of a run, and the tables of the repository."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._files import write_atomically as write_atomically
from ..errors import SkewflowError

ROOT = Path(__file__).parents[3]
"""The checkout, when the package runs from one."""
ANEW = "Restore it, or remove the folder and start the run anew."
"""The way out where a file of a run is damaged that no other can stand for."""


class RunError(SkewflowError, RuntimeError):
    """A run cannot start, go on or be written; the message says what to do."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file of a run.

    Raises:
        RunError: If the disk is full, read-only or gone; `path` is as it was.
    """
    try:
        write_atomically(path, data)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON; NaN and infinity are not JSON, so they are refused."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path, way_out: str = ANEW) -> Any:
    """The value in a JSON file; NaN and infinity are refused here, too."""
    try:
        return json.loads(path.read_text(), parse_float=_finite, parse_constant=_finite)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} must be a readable JSON file: {error}. {way_out}") from error


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number


def read_object(path: Path, way_out: str = ANEW, /, **entries: type) -> dict[str, Any]:
    """The object in a JSON file, which must have these entries of these types."""
    value = read_json(path, way_out)
    if not isinstance(value, dict):
        raise damaged(path, "a JSON object", value, way_out)
    for name, kind in entries.items():
        if not isinstance(value.get(name), kind):
            what = f"a JSON object whose {name!r} is a {kind.__name__}"
            raise damaged(path, what, value.get(name), way_out)
    return value


def damaged(path: Path, rule: str, value: object, way_out: str = ANEW) -> RunError:
    """The error for a file of a run that is not what a run writes."""
    return RunError(f"{path} must be {rule}: got {value!r:.60}. {way_out}")


def cannot_write(path: Path, error: OSError) -> RunError:
    """The error for a path that cannot be written, with the way out."""
    return RunError(
        f"cannot write {path}: {error.strerror or error}. What was written before is whole. Make "
        "room or choose a folder that can be written with --out; go on with --resume."
    )


def repository_table(name: str) -> Path:
    """The path of benchmarks/data/<name>.csv, in the checkout that this package runs from."""
    folder = ROOT / "benchmarks" / "data"
    if not folder.is_dir():
        raise RunError(
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
