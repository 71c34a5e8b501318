"""Resuming a run: reads its state, and checks that configuration and machine are the same."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .files import RunError, damaged, load_tensors, read_json

FROM_THE_START = "Restore it, or remove that file: its cell then starts at its beginning."
"""The remedy for a damaged state of an unfinished cell."""

_STATE = {"state": dict, "lines": int, "seconds": float, "timing": dict}
"""The entries of a saved state, and their types."""


def read_starts(path: Path) -> list[dict[str, str]]:
    """The entries of `environment.json`."""
    starts = read_json(path)
    if not isinstance(starts, list) or not all(map(_is_start, starts)):
        raise damaged(path, "a list of JSON objects whose entries are text", starts)
    return starts


def _is_start(start: object) -> bool:
    return isinstance(start, dict) and all(isinstance(value, str) for value in start.values())


def read_state(path: Path) -> dict[str, Any]:
    """The state that `Run.save` wrote."""
    whole = load_tensors(path, FROM_THE_START)
    for name, kind in _STATE.items():
        if not isinstance(found := whole.get(name), kind):
            rule = f"a state that a run saved, whose {name!r} is a {kind.__name__}"
            raise damaged(path, rule, found, FROM_THE_START)
    return whole


def read_metrics(path: Path) -> list[tuple[str, str]]:
    """The complete lines of `metrics.jsonl`, each with the name of its cell before it."""
    found = []
    *whole, _ = path.read_bytes().split(b"\n")  # the last part is empty or a line cut short
    for number, raw in enumerate(whole, 1):
        try:
            line = raw.decode() + "\n"
            cell = json.loads(line)["cell"]
        except (ValueError, TypeError, KeyError):
            cell = None
        if not isinstance(cell, str):
            rule = f"lines of JSON objects, each with its cell (line {number} is not)"
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


def same_config(found: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    """Check that two configurations agree; the error names the differences."""
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


def same_machine(
    starts: Sequence[Mapping[str, str]], now: Mapping[str, str], same: Collection[str], folder: Path
) -> None:
    """Check that all starts of a run agree in these entries; the error names the differences."""
    differ = [each for then in starts for each in _differences(then, now, same)]
    if differ:
        raise RunError(
            f"--resume needs the machine of the run in {folder}, whose results are seconds: this "
            f"one differs in {', '.join(dict.fromkeys(differ))}. Continue on that machine, or "
            "write elsewhere with --out."
        )
