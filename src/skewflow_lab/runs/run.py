"""A run is a folder: configuration, environment, metrics, results of finished cells, summary.

config.json       the settings
environment.json  one entry for each start: commit, versions, machine
metrics.jsonl     one line for each measurement, in the order of the cells
cells/NAME.json   the result of a finished cell, with a checksum
cells/NAME.state  the state of an unfinished cell, with a checksum
kept/NAME.pt      tensors of a finished cell, such as a trained policy
videos/NAME.gif   a video drawn from these tensors
timing.json       all times, with a checksum
summary.json      the results, with a checksum; it has no times, so a resumed run ends with the
                  same bytes
"""

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .environment import environment
from .files import (
    CHECKSUM,
    RESTART,
    Entries,
    RunError,
    cannot_write,
    check_name,
    damaged,
    load_tensors,
    read_object,
    remove,
    save_tensors,
    write_bytes,
    write_checked,
    write_json,
)
from .lock import locked
from .resume import (
    FROM_THE_START,
    read_metrics,
    read_starts,
    read_state,
    same_config,
    same_machine,
)

AGAIN = "Restore it, or remove that file: --resume then repeats its cell."
"""The remedy for a damaged result of a finished cell."""


class Run:
    """A run folder, open for work.

    Args:
        folder: The folder of the run.
        cells: The names of all cells, in the order in which they run.
    """

    def __init__(self, folder: Path, cells: Sequence[str]) -> None:
        for cell in cells:
            check_name("a cell", cell)
        if not cells:
            raise RunError(
                "a run must have at least one cell: got none. Give every option that takes several "
                "values at least one."
            )
        if len(set(cells)) != len(cells):
            twice = next(cell for cell in cells if cells.count(cell) > 1)
            raise RunError(
                f"cells must have different names: got {twice!r} twice. Give each value of an "
                "option once."
            )
        self.folder = folder
        self.cells = tuple(cells)
        self.changed: list[str] = []
        """Entries of the environment that differ from an earlier start."""
        self.on_progress: Callable[[float], None] = _ignore
        self._timing: dict[str, dict[str, float]] = {}
        self._lines: dict[str, int] = dict.fromkeys(cells, 0)
        self._began = time.perf_counter()
        self._seconds = 0.0

    @classmethod
    @contextmanager
    def start(
        cls,
        folder: Path,
        cells: Sequence[str],
        wanted: dict[str, Any],
        *,
        resume: bool,
        besides: Mapping[str, str] | None = None,
        same: Collection[str] = (),
        check: "Callable[[Run], None]" = lambda run: None,
    ) -> "Iterator[Run]":
        """Create the folder, or resume the run in it, and keep other processes out of it.

        Args:
            folder: The folder of the run.
            cells: Names of its cells.
            wanted: Contents of `config.json`; a resumed run must have the same entry "config".
            resume: Continue an unfinished run, if there is one.
            besides: Entries of `environment.json` besides the machine, torch and the commit.
            same: Entries of `environment.json` that must be the same in a resumed run.
            check: Raises an error if a resumed run cannot use the results of the finished cells.

        Raises:
            RunError: If the folder holds another run, or a damaged one, or another process uses it;
                nothing is changed then.
        """
        run = cls(folder, cells)
        with locked(folder):
            run._start(wanted, resume, besides or {}, same, check)
            yield run

    def _start(
        self,
        wanted: dict[str, Any],
        resume: bool,
        besides: Mapping[str, str],
        same: Collection[str],
        check: "Callable[[Run], None]",
    ) -> None:
        folder = self.folder
        path = folder / "config.json"
        now = {**environment(wanted["config"].get("device", "cpu")), **besides}
        starts: list[dict[str, str]] = []
        if _exists(path):
            if not resume:
                state = "a finished" if _exists(folder / "summary.json") else "an unfinished"
                raise RunError(
                    f"{folder} already holds {state} run. Continue with --resume, write elsewhere "
                    "with --out, or remove that folder."
                )
            found = read_object(path, experiment=str, config=dict, command=str)
            same_config(found, wanted, folder)
            starts = read_starts(folder / "environment.json")
            self.changed = sorted(
                {k for then in starts for k in {*now, *then} if now.get(k) != then.get(k)}
                - {"date"}
            )
            same_machine(starts, now, same, folder)
            check(self)
            self._recover()
        elif any((folder / "cells").glob("*")):
            raise RunError(
                f"{path} must exist, since {folder / 'cells'} holds results: their settings are "
                f"unknown without it. {RESTART}"
            )
        write_json(folder / "environment.json", [*starts, now])
        write_json(path, wanted)

    def result(self, cell: str) -> dict[str, Any] | None:
        """The result of a cell; None if it is not finished."""
        path = self.file(cell)
        if not path.exists():
            return None
        return Entries(path, read_object(path, AGAIN, **{CHECKSUM: str}), AGAIN)

    def file(self, cell: str) -> Path:
        """The file of the result of a finished cell."""
        return self._path(cell, "json")

    def finish(
        self, cell: str, result: dict[str, Any], clocks: dict[str, float] | None = None
    ) -> None:
        """Record the result of a cell, and remove its state.

        Args:
            cell: Its name.
            result: What it gave.
            clocks: What `clocks` returned, if another process did the cell.
        """
        self._sync_metrics()
        self._timing[cell] = self.clocks(cell) if clocks is None else clocks
        write_checked(self.folder / "timing.json", self._timing)
        write_checked(self._path(cell, "json"), result)
        remove(self._path(cell, "state"))
        self._restart_clock(0.0)

    def clocks(self, cell: str) -> dict[str, float]:
        """The clock times of the cell that has just ended."""
        return {**self._timing.get(cell, {}), "seconds": self._elapsed()}

    def worker(self) -> "Run":
        """This run for another process, which works on one cell and finishes none."""
        run = Run(self.folder, self.cells)
        run._lines = dict(self._lines)
        return run

    def sort_metrics(self) -> None:
        """Bring the lines of `metrics.jsonl` into the order of the cells."""
        path, place = self.folder / "metrics.jsonl", {c: n for n, c in enumerate(self.cells)}
        lines = sorted(read_metrics(path), key=lambda line: place[line[0]])
        write_bytes(path, "".join(line for _, line in lines).encode())

    def save(self, cell: str, state: dict[str, Any]) -> None:
        """Store the state of an unfinished cell: tensors, numbers and containers of them."""
        self._sync_metrics()
        whole = {
            "state": dict(state),
            "lines": self._lines[cell],
            "seconds": self._elapsed(),
            "timing": self._timing.get(cell, {}),
        }
        save_tensors(self._path(cell, "state"), whole)

    def load(self, cell: str) -> dict[str, Any] | None:
        """The state that `save` stored last; None if the cell has to start at its beginning.

        A cell resumed from this state gives the same numbers as one that was not stopped.
        """
        path = self._path(cell, "state")
        if not path.exists():
            self._restart_clock(0.0)
            return None
        whole = read_state(path)
        self._restart_clock(whole["seconds"])
        self._timing[cell] = whole["timing"]
        return Entries(path, whole["state"], FROM_THE_START)

    def keep(self, cell: str, value: dict[str, Any]) -> None:
        """Store tensors of a finished cell, which its JSON result cannot hold."""
        save_tensors(self._kept(cell), value)

    def kept(self, cell: str) -> dict[str, Any]:
        """The tensors that `keep` stored.

        Raises:
            RunError: If the file is missing or damaged.
        """
        path, result = self._kept(cell), self._path(cell, "json")
        way_out = f"Restore it, or remove {result}: --resume then repeats that cell."
        return load_tensors(path, way_out)

    def _kept(self, cell: str) -> Path:
        return self.folder / "kept" / f"{cell}.pt"

    def metric(self, cell: str, **values: float | int | str | None) -> None:
        """Append a line to `metrics.jsonl`."""
        line = json.dumps({"cell": cell, **values}, allow_nan=False) + "\n"
        path = self.folder / "metrics.jsonl"
        try:
            with path.open("a") as file:
                file.write(line)
        except OSError as error:
            raise cannot_write(path, error) from error
        self._lines[cell] += 1

    def time(self, cell: str, name: str, value: float) -> None:
        """Record a time in `timing.json`, which is not part of the summary."""
        self._timing.setdefault(cell, {})[name] = value

    def progress(self, fraction: float) -> None:
        """Report the finished fraction of the current cell, from 0 to 1."""
        self.on_progress(fraction)

    def _path(self, cell: str, ending: str) -> Path:
        if cell not in self._lines:
            raise ValueError(f"{cell!r} is not a cell of this run.")
        return self.folder / "cells" / f"{cell}.{ending}"

    def _recover(self) -> None:
        """Drop metrics that a resumed cell will measure again, and an incomplete last line."""
        for leftover in self.folder.rglob(".*.tmp"):  # of a process that was killed while writing
            remove(leftover)
        timing, metrics = self.folder / "timing.json", self.folder / "metrics.jsonl"
        if timing.exists():
            self._timing = read_object(timing)
            for clocks in self._timing.values():
                if not isinstance(clocks, dict):
                    raise damaged(timing, "a JSON object of objects", clocks)
        most: dict[str, float] = {}
        for cell in self.cells:
            state = self._path(cell, "state")
            if self.result(cell) is not None:
                most[cell] = float("inf")
                remove(state)
            elif state.exists():
                most[cell] = read_state(state)["lines"]
        kept = []
        for cell, line in read_metrics(metrics) if metrics.exists() else ():
            if self._lines.get(cell, 0) < most.get(cell, 0):
                self._lines[cell] += 1
                kept.append(line)
        write_bytes(metrics, "".join(kept).encode())

    def _sync_metrics(self) -> None:
        """Write the metrics to disk before a result or a state, which must not be newer."""
        path = self.folder / "metrics.jsonl"
        try:
            with path.open("a") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(path, error) from error

    def _elapsed(self) -> float:
        return self._seconds + time.perf_counter() - self._began

    def _restart_clock(self, seconds: float) -> None:
        self._began, self._seconds = time.perf_counter(), seconds


def _ignore(fraction: float) -> None:
    """Progress of a run that shows none; a lambda could not be sent to another process."""


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise cannot_write(path, error) from error
