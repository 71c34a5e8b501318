"""Reads and writes the files of a run, and the recorded tables of the repository."""

import csv
import hashlib
import io
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skewflow._files import load_checked, save_checked
from skewflow._files import write_atomically as write_atomically
from skewflow.errors import CheckpointError, SkewflowError

ROOT = Path(__file__).parents[3]
"""Root of the checkout, when the package runs from one."""
RESTART = "Restore it, or remove the folder and restart the run."
"""The remedy for a damaged file that nothing else can replace."""


CHECKSUM = "sha256"
"""The entry of a JSON object that holds the checksum of the others."""


class RunError(SkewflowError, RuntimeError):
    """A run cannot start, resume or be written; the message says what to do."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file of a run.

    Raises:
        RunError: If the disk is full, read-only or missing; `path` is unchanged then.
    """
    try:
        write_atomically(path, data)
    except OSError as error:
        raise cannot_write(path, error) from error


def remove(path: Path) -> None:
    """Remove a file of a run, if there is one.

    Raises:
        RunError: If the disk is read-only or missing.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON; NaN and infinity are not JSON, so they are refused."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_checked(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object whose last entry is the checksum of all others."""
    write_json(path, {**value, CHECKSUM: _digest(value)})


def _digest(value: Mapping[str, Any]) -> str:
    # The checksum is that of the values, because a file may be indented otherwise.
    return hashlib.sha256(json.dumps(value, allow_nan=False).encode()).hexdigest()


def read_json(path: Path, way_out: str = RESTART) -> Any:
    """The value in a JSON file; NaN, infinity and text that cannot be shown are refused."""
    try:
        value = json.loads(path.read_text(), parse_float=_finite, parse_constant=_finite)
        _check_text(value)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} must be a readable JSON file: {error}. {way_out}") from error
    return value


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number


def _check_text(value: Any) -> None:
    """Refuse text with control characters, or that cannot be encoded."""
    left = [value]
    while left:
        match left.pop():
            case dict() as entries:
                left += [*entries, *entries.values()]
            case list() as items:
                left += items
            case str() as text if not text.isprintable():
                for letter in text:
                    if unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter not in "\n\t":
                        raise ValueError(f"{letter!r} is a control character")


def read_object(path: Path, way_out: str = RESTART, /, **entries: type) -> dict[str, Any]:
    """The object in a JSON file, which must have these entries of these types.

    If there is a checksum, it must be right; the object is returned without it.
    """
    value = read_json(path, way_out)
    if not isinstance(value, dict):
        raise damaged(path, "a JSON object", value, way_out)
    for name, kind in entries.items():
        if not isinstance(value.get(name), kind):
            what = f"a JSON object whose {name!r} is a {kind.__name__}"
            raise damaged(path, what, value.get(name), way_out)
    found = value.pop(CHECKSUM, None)
    if found is not None and found != _digest(value):
        rule = "as it was written, with entries that match its checksum"
        raise damaged(path, rule, found, way_out)
    return value


def save_tensors(path: Path, value: dict[str, Any]) -> None:
    """Write tensors, numbers and containers of them under names, with a checksum."""
    try:
        save_checked(path, value)
    except OSError as error:
        raise cannot_write(path, error) from error


def load_tensors(path: Path, way_out: str) -> "Entries":
    """Load the entries that `save_tensors` wrote, on the CPU."""
    try:
        value = load_checked(path, way_out)
    except CheckpointError as error:
        raise RunError(str(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, "a file of named entries", value, way_out)
    return Entries(path, value, way_out)


class Entries(dict[str, Any]):
    """The entries of a file; a missing one raises an error that names the file."""

    def __init__(self, path: Path, value: Mapping[str, Any], way_out: str) -> None:
        super().__init__(value)
        self._path, self._way_out = path, way_out

    def __missing__(self, key: str) -> Any:
        rule = f"a file of this version, with an entry {key!r}"
        raise damaged(self._path, rule, ", ".join(self), self._way_out)


def check_name(what: str, name: str) -> None:
    """Check a name of a file: it cannot lead out of its folder or contain markup.

    Raises:
        ValueError: If it has a slash, a quote, a blank, or begins with a dot.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9=.,_+-]*", name):
        raise ValueError(f"{what}'s name becomes a file's name: got {name!r}.")


def damaged(path: Path, rule: str, value: object, way_out: str = RESTART) -> RunError:
    """The error for a file that does not have the form that a run writes."""
    return RunError(f"{path} must be {rule}: got {value!r:.60}. {way_out}")


def cannot_write(path: Path, error: OSError) -> RunError:
    """The error for a path that cannot be written, with the way out."""
    return RunError(
        f"cannot write {path}: {error.strerror or error}. Earlier files are complete. Make "
        "room or choose a folder that can be written with --out; continue with --resume."
    )


def recorded(name: str) -> Path:
    """The path of results/bench/NAME in the checkout that this package runs from.

    Raises:
        RunError: If the package does not run from a checkout.
    """
    folder = ROOT / "results" / "bench"
    if not folder.is_dir():
        raise RunError(
            f"numbers are kept in results/bench/{name} of the repository, and skewflow runs from "
            f"{Path(__file__).parents[1]}, which is not in a checkout. Install one with "
            "`pip install -e .`, or run without saving."
        )
    return folder / name


def append_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Append rows to a CSV file, which is created if it does not exist."""
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
