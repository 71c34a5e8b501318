"""Recorded results: their command, machine and date, and whether their code has changed."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..runs.code import changed

BENCH = "bench"
"""The folder of the benchmarks' records, relative to the folder of all results."""


@dataclass(frozen=True)
class Recorded:
    """A result in the repository: the folder of a run, or a file of a benchmark.

    Args:
        results: The folder of all results.
        path: Its path below that folder.
        title: The heading of its section.
        top: The highest room of the library that it runs.
        command: The command that makes it, if its files do not name one.
        note: Explanation of the tables for a reader, without numbers.
        figure: Path of a picture below `results`.
        columns: For each table the columns that are shown; all when a table is not listed. An empty
            tuple shows a link instead.
        device: Show only rows of this machine, if the file has rows of several.
        outdated: The options of its commands have changed; they are shown as comments.
    """

    results: Path
    path: str
    title: str
    top: str | None = None
    command: str = ""
    note: str = ""
    figure: str = ""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    outdated: bool = False

    @property
    def file(self) -> Path:
        """The folder or file."""
        return self.results / self.path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary of a run, or the whole of a JSON file."""
        path = self.file / "summary.json" if self.file.is_dir() else self.file
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    @cached_property
    def starts(self) -> list[dict[str, str]]:
        """An environment for each start of the run."""
        if self.file.is_dir():
            found: list[dict[str, str]] = json.loads((self.file / "environment.json").read_text())
            return found
        if self.file.suffix == ".csv":
            return list(csv.DictReader(self.file.read_text(encoding="utf-8").splitlines()))
        return [self.summary["environment"]] if "environment" in self.summary else []

    @property
    def commands(self) -> list[str]:
        """The commands that made it."""
        text = self.command if self.file.suffix == ".csv" else self.summary.get("command", "")
        lines: list[str] = (text or self.command).splitlines()
        return [f"# {line}" for line in lines] if self.outdated else lines

    @property
    def verdict(self) -> str:
        """The verdict of a run in words; empty for a benchmark."""
        return "" if self.file.suffix == ".csv" else self.summary.get("verdict", "")

    def named(self, *keys: str) -> str:
        """The values of some entries of its environments, each once."""
        found = (start[key] for key in keys for start in self.starts if start.get(key))
        return ", ".join(value for value in dict.fromkeys(found) if value != "cpu")

    @property
    def machine(self) -> str:
        """The machines of its starts; "unknown" for a record without them."""
        return self.named("device", "simulates on") or "unknown"

    @property
    def commit(self) -> str:
        """The commits of its starts, with a dagger if the code has changed since."""
        named = list(dict.fromkeys(s["commit"] for s in self.starts if s.get("commit")))
        text = f"{named[0]} to {named[-1]}" if len(named) > 1 else "".join(named) or "unknown"
        return text + DAGGER if self.changed else text

    @property
    def date(self) -> str:
        """The day of its last start."""
        days = [s.get("date") or s.get("utc", "")[:10] for s in self.starts]
        return max(days, default="unknown")

    @property
    def changed(self) -> bool:
        """Whether the code that it depends on has changed since it was recorded."""
        return not self.starts or any(changed(s.get("code", ""), self.top) for s in self.starts)


DAGGER = "\N{DAGGER}"
