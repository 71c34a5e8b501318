"""One run is one folder: configuration, environment, metrics as they come, finished cells, summary.

config.json       what was asked for
environment.json  one entry for each start: commit, versions, machine
metrics.jsonl     one line for each measurement, in the order of the cells
cells/NAME.json   the result of a finished cell, with a checksum
cells/NAME.state  the inner state of an unfinished one, with a checksum
kept/NAME.pt      what a finished cell leaves besides its result: a trained policy, say
videos/NAME.gif   drawn from it
timing.json       everything that was read off a clock, with a checksum
summary.json      the results, with a checksum: no clock times, so that a resumed run ends in the
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
    read_json,
    read_object,
    remove,
    save_tensors,
    write_bytes,
    write_checked,
    write_json,
)
from .lock import locked

AGAIN = "Restore it, or remove that file: --resume then makes its cell again."
FROM_THE_START = "Restore it, or remove that file: its cell then starts at its beginning."


class Run:
    """A run folder, open for work.

    Args:
        folder: Where everything goes.
        cells: The names of all cells, in the order in which they run.
    """

    def __init__(self, folder: Path, cells: Sequence[str]) -> None:
        for cell in cells:
            check_name("a cell", cell)
        if len(set(cells)) != len(cells):
            twice = next(cell for cell in cells if cells.count(cell) > 1)
            raise RunError(
                f"cells must have different names: got {twice!r} twice. Give each value of an "
                "option once."
            )
        self.folder = folder
        self.cells = tuple(cells)
        self.changed: list[str] = []
        """What differs from the machine, versions or commit of an earlier start."""
        self.on_progress: Callable[[float], None] = lambda fraction: None
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
        """Make the folder, or go on in the one that is there, and keep other processes out of it.

        Args:
            folder: The run's folder.
            cells: Names of its cells.
            wanted: What `config.json` holds; its entry "config" has to be equal on resumption.
            resume: Go on with an unfinished run; without one, start.
            besides: What `environment.json` records besides the machine, torch and the commit.
            same: Those of its entries that have to be equal on resumption.
            check: Raises where the results of finished cells are none that can be gone on with.

        Raises:
            RunError: If the folder holds another run, or a damaged one, or another process is at
                work in it; nothing is changed then.
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
                    f"{folder} already holds {state} run. Go on with --resume, write elsewhere "
                    "with --out, or remove that folder."
                )
            found = read_object(path, experiment=str, config=dict, command=str)
            _same_config(found, wanted, folder)
            starts = read_starts(folder / "environment.json")
            self.changed = sorted(
                {k for then in starts for k in {*now, *then} if now.get(k) != then.get(k)}
                - {"date"}
            )
            _same_machine(starts, now, same, folder)
            check(self)
            self._recover()
        elif any((folder / "cells").glob("*")):
            raise RunError(
                f"{path} must be there, since {folder / 'cells'} holds results: without it nobody "
                f"knows what they are of. {RESTART}"
            )
        write_json(folder / "environment.json", [*starts, now])
        write_json(path, wanted)

    def result(self, cell: str) -> dict[str, Any] | None:
        """What a finished cell gave, or None."""
        path = self.file(cell)
        if not path.exists():
            return None
        return Entries(path, read_object(path, AGAIN, **{CHECKSUM: str}), AGAIN)

    def file(self, cell: str) -> Path:
        """Where the result of a finished cell is."""
        return self._path(cell, "json")

    def finish(self, cell: str, result: dict[str, Any]) -> None:
        """Record a cell's result; its inner state is not needed any more."""
        self._sync_metrics()
        self.time(cell, "seconds", self._elapsed())
        write_checked(self.folder / "timing.json", self._timing)
        write_checked(self._path(cell, "json"), result)
        remove(self._path(cell, "state"))
        self._restart_clock(0.0)

    def save(self, cell: str, state: dict[str, Any]) -> None:
        """Store the inner state of an unfinished cell: tensors, numbers and containers of them."""
        self._sync_metrics()
        whole = {
            "state": dict(state),
            "lines": self._lines[cell],
            "seconds": self._elapsed(),
            "timing": self._timing.get(cell, {}),
        }
        save_tensors(self._path(cell, "state"), whole)

    def load(self, cell: str) -> dict[str, Any] | None:
        """The inner state that `save` stored last, or None: then the cell starts at its beginning.

        A cell that was stopped goes on from here and ends with the numbers of one that was not.
        """
        path = self._path(cell, "state")
        if not path.exists():
            self._restart_clock(0.0)
            return None
        whole = _read_state(path)
        self._restart_clock(whole["seconds"])
        self._timing[cell] = whole["timing"]
        return Entries(path, whole["state"], FROM_THE_START)

    def keep(self, cell: str, value: dict[str, Any]) -> None:
        """Store what a cell has made and a result cannot hold: tensors, in containers."""
        save_tensors(self._kept(cell), value)

    def kept(self, cell: str) -> dict[str, Any]:
        """What `keep` stored.

        Raises:
            RunError: If there is none, or the file is damaged.
        """
        path, result = self._kept(cell), self._path(cell, "json")
        way_out = f"Restore it, or remove {result}: --resume then makes that cell again."
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
        """Keep something that was read off a clock, out of the summary."""
        self._timing.setdefault(cell, {})[name] = value

    def progress(self, fraction: float) -> None:
        """Say how much of the current cell is done, from 0 to 1."""
        self.on_progress(fraction)

    def _path(self, cell: str, ending: str) -> Path:
        if cell not in self._lines:
            raise ValueError(f"{cell!r} is no cell of this run.")
        return self.folder / "cells" / f"{cell}.{ending}"

    def _recover(self) -> None:
        """Drop the metrics that a stopped cell will measure again, and a line cut short."""
        for leftover in self.folder.rglob(".*.tmp"):  # of a process that was killed as it wrote
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
                most[cell] = _read_state(state)["lines"]
        kept = []
        for cell, line in _read_metrics(metrics) if metrics.exists() else ():
            if self._lines.get(cell, 0) < most.get(cell, 0):
                self._lines[cell] += 1
                kept.append(line)
        write_bytes(metrics, "".join(kept).encode())

    def _sync_metrics(self) -> None:
        """A result or a state never outlives the metrics that came before it."""
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


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise cannot_write(path, error) from error


def read_starts(path: Path) -> list[dict[str, str]]:
    """The entries of `environment.json`."""
    starts = read_json(path)
    if not isinstance(starts, list) or not all(map(_is_start, starts)):
        raise damaged(path, "a list of JSON objects whose entries are text", starts)
    return starts


def _is_start(start: object) -> bool:
    return isinstance(start, dict) and all(isinstance(value, str) for value in start.values())


def _read_state(path: Path) -> dict[str, Any]:
    """What `Run.save` wrote."""
    whole = load_tensors(path, FROM_THE_START)
    for name, kind in _STATE.items():
        if not isinstance(found := whole.get(name), kind):
            rule = f"a state that a run saved, whose {name!r} is a {kind.__name__}"
            raise damaged(path, rule, found, FROM_THE_START)
    return whole


_STATE = {"state": dict, "lines": int, "seconds": float, "timing": dict}


def _read_metrics(path: Path) -> list[tuple[str, str]]:
    """The whole lines of `metrics.jsonl`, each behind the name of its cell."""
    found = []
    *whole, _ = path.read_bytes().split(b"\n")  # behind the last end of a line: one cut short
    for number, raw in enumerate(whole, 1):
        try:
            line = raw.decode() + "\n"
            cell = json.loads(line)["cell"]
        except (ValueError, TypeError, KeyError):
            cell = None
        if not isinstance(cell, str):
            rule = f"lines of JSON objects, each with its cell (line {number} is none)"
            raise damaged(path, rule, raw)
        found.append((cell, line))
    return found


def _differences(
    there: Mapping[str, Any], here: Mapping[str, Any], names: Collection[str]
) -> list[str]:
    """The entries of these names that differ, with both values."""
    return [
        f"{name} ({there.get(name)!r} there, {here.get(name)!r} here)"
        for name in names
        if there.get(name) != here.get(name)
    ]


def _same_config(found: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    """Two configurations agree, or the error names where they do not."""
    if found["experiment"] != wanted["experiment"]:
        raise RunError(
            f"{folder} holds a run of {found['experiment']!r}: got {wanted['experiment']!r}. "
            "Choose another folder with --out."
        )
    old, new = found["config"], json.loads(json.dumps(wanted["config"]))
    differ = _differences(old, new, sorted({*old, *new}))
    if differ:
        raise RunError(
            f"--resume needs the configuration of the run in {folder}, which differs in "
            f"{', '.join(differ)}. That run was started by `{found['command']}`. Give its options, "
            "or write elsewhere with --out."
        )


def _same_machine(
    starts: Sequence[Mapping[str, str]], now: Mapping[str, str], same: Collection[str], folder: Path
) -> None:
    """All starts of a run agree in these entries, or the error names where they do not."""
    differ = [each for then in starts for each in _differences(then, now, same)]
    if differ:
        raise RunError(
            f"--resume needs the machine of the run in {folder}, whose results are seconds: this "
            f"one differs in {', '.join(dict.fromkeys(differ))}. Go on on such a machine, or "
            "write elsewhere with --out."
        )
