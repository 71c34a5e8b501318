"""What the benchmark commands share: the checks before the first minute, the bar, the print-out."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..measure.timing import reason
from ..runs.environment import check_device
from ..runs.files import RunError

PEERS = ("geoopt", "geotorch", "pogo")
ABSENT = "not installed; pip install 'skewflow[peers]' brings it"


def check_machine(device: str, rounds: int, out: Path) -> None:
    """Refuse a device that is not there, no rounds at all, and a folder that takes no files."""
    check_device(device)
    if rounds < 1:
        raise RunError(f"--rounds must be at least 1: got {rounds}.")
    there = next(path for path in (out, *out.parents) if path.exists())
    try:
        with TemporaryFile(dir=there):  # which leaves no trace
            pass
    except OSError as error:
        raise RunError(
            f"--out must be a folder that can be written to: got {out} "
            f"({there}: {error.strerror}). Name another."
        ) from error


def why_not(error: Exception) -> str:
    """What the table says of a method that could not be made: a rival's failure is a result."""
    absent = isinstance(error, ModuleNotFoundError) and error.name in PEERS
    return ABSENT if absent else f"failed: {reason(error)}"


def bar() -> Progress:
    """The progress bar of a benchmark."""
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())


def show(*parts: str | Table) -> None:
    """Print a result."""
    out = Console()
    if not out.is_terminal:
        out = Console(width=240)  # a file has no edge to fold the table at
    say = partial(out.print, markup=False, highlight=False)
    for part in parts:
        say(part)


def written(paths: Iterable[Path]) -> str:
    """The last line: where the numbers are."""
    return f"written: {', '.join(map(str, paths))}"
