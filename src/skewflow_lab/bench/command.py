"""Common parts of the benchmark commands: checks of options, the progress bar, the output."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..measure.timing import percentiles, reason
from ..runs.environment import check_device, environment
from ..runs.files import RunError, append_rows, recorded

Device = Literal["cpu", "cuda"]
DEVICE: Device = "cuda" if torch.cuda.is_available() else "cpu"
"""The default device of a benchmark."""

PEERS = ("geoopt", "geotorch", "pogo", "orthogonium")
ABSENT = "not installed; pip install 'skewflow[peers]' brings it"


def check_rounds(device: str, rounds: int, save: bool = False) -> None:
    """Refuse a missing device, fewer than one round, and saving outside of a checkout."""
    check_device(device)
    if rounds < 1:
        raise RunError(f"--rounds must be at least 1: got {rounds}.")
    if save:
        recorded("results.csv")


def check_folder(out: Path) -> None:
    """Refuse a folder in which no file can be written."""
    there = next(path for path in (out, *out.parents) if path.exists())
    try:
        with TemporaryFile(dir=there):  # removed at once
            pass
    except OSError as error:
        raise RunError(
            f"--out must be a folder that can be written to: got {out} "
            f"({there}: {error.strerror}). Name another."
        ) from error


def why_not(error: Exception) -> str:
    """The note in a table on a method that could not start: a rival's failure is a result."""
    absent = isinstance(error, ModuleNotFoundError) and error.name in PEERS
    return ABSENT if absent else f"failed: {reason(error)}"


def bar() -> Progress:
    """The progress bar of a benchmark."""
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())


def show(*parts: str | Table) -> None:
    """Print a result."""
    out = Console()
    if not out.is_terminal:
        out = Console(width=240)  # in a file, tables need not be wrapped
    say = partial(out.print, markup=False, highlight=False)
    for part in parts:
        say(part)


def written(paths: Iterable[Path]) -> str:
    """The last line of the output, which names the files."""
    return f"written: {', '.join(map(str, paths))}"


def append_result(benchmark: str, case: str, unit: str, values: Sequence[float]) -> None:
    """Append the 20th, 50th and 80th percentile of `values` to results/bench/results.csv."""
    machine = environment("cpu")
    row = {
        "benchmark": benchmark,
        "case": case,
        "unit": unit,
        **percentiles(values),
        "rounds": len(values),
        **{key: machine[key] for key in ("device", "threads", "python", "torch", "commit")},
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    append_rows(recorded("results.csv"), [row])
