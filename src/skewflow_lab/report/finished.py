"""Reads finished runs for `report` and `collect`, also runs from other people."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench.learning_rate.experiment import LearningRate
from ..bench.quality.experiment import Quality
from ..paper import EXPERIMENTS
from ..runs.experiment import Experiment, Timing
from ..runs.files import RunError, damaged, read_object
from ..runs.resume import read_starts

SUMMARY = {
    "experiment": str,
    "preset": str,
    "command": str,
    "verdict": str,
    "config": dict,
    "results": dict,
}
"""Entries of every summary.json."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its summary, its times, and its machine and date."""

    folder: Path
    experiment: Experiment[Any]
    summary: dict[str, Any]
    timing: Timing
    starts: list[dict[str, str]]


def known_experiments() -> dict[str, Experiment[Any]]:
    """The experiments, and the benchmarks that are run as one, in the order of the page."""
    return {**EXPERIMENTS, LearningRate.name: LearningRate(), Quality.name: Quality()}


def read_run(folder: Path) -> FinishedRun:
    """The run in a folder.

    Raises:
        RunError: If the folder has no run, or one that is damaged or that this version does not
            know.
    """
    path = folder / "summary.json"
    summary = read_object(path, **SUMMARY)
    name, known = summary["experiment"], known_experiments()
    if name not in known:
        raise RunError(
            f"{folder} holds a run of {name!r}, which this version does not know: it knows "
            f"{', '.join(sorted(known))}. Leave that folder out."
        )
    for line in summary["command"].splitlines():
        if not _is_plain(line):  # the page offers it to be copied into a shell
            raise damaged(path, "a summary whose 'command' runs an experiment", line)
    clocks, machines = folder / "timing.json", folder / "environment.json"
    timing = read_object(clocks) if clocks.exists() else {}
    for clock in timing.values():
        if not isinstance(clock, dict):
            raise damaged(clocks, "a JSON object of objects", clock)
    starts = read_starts(machines) if machines.exists() else []
    return FinishedRun(folder, known[name], summary, timing, starts)


def _is_plain(command: str) -> bool:
    """Whether a shell would run an experiment with these words and do nothing else."""
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    runs = words[:2] in (["skewflow", "reproduce"], ["skewflow", "bench"])
    return runs and shlex.join(words) == command


@contextmanager
def shown(files: object) -> Iterator[None]:
    """Turn any error of code that shows the results in `files` into one that names them.

    Every experiment has its form of results, so a missing entry is noticed only when it is read.
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        raise RunError(
            f"{files} must hold results that this version can show: got {type(error).__name__}: "
            f"{error!s:.200}. Make the run again, or leave its folder out."
        ) from error


def read_video(path: Path) -> bytes:
    """The bytes of a GIF in the folder `videos` of a run.

    Raises:
        RunError: If it is not a GIF, or is a link, which could show any file of this disk.
    """
    if path.resolve() != path.parents[1].resolve() / "videos" / path.name:
        raise RunError(f"{path} must be a file: got a link to {path.resolve()}. Remove it.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}. Remove it.") from error
    if not data.startswith((b"GIF87a", b"GIF89a")):
        raise RunError(f"{path} must be a GIF: got {data[:6]!r} at its start. Remove it.")
    return data
