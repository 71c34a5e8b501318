"""Fingerprints of the code, so that a record knows whether the code has changed since.

They are computed from the files and need no history. Comments, docstrings and blank lines do not
count, because they change no number.
"""

import ast
import hashlib
import io
import tokenize
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[2]
"""The folder that holds both packages."""
LIBRARY = (
    "geometry",
    "tournaments",
    "samplers",
    "kernels",
    "optim",
    "nn",
    "flows",
    "es",
    "problems",
)
"""Rooms of the library, lowest first: each imports only those before it."""
LABORATORY = ("models", "measure", "rl", "data", "paper", "bench")
"""Rooms of the laboratory whose code computes results; the others only write and show them."""


@cache
def fingerprints(sources: Path = SOURCES) -> dict[str, str]:
    """A short hash of each room of the library and of the laboratory."""
    rooms = {name: sources / "skewflow" / name for name in LIBRARY}
    rooms |= {name: sources / "skewflow_lab" / name for name in LABORATORY}
    return {name: _fingerprint(folder) for name, folder in rooms.items()}


def to_text(code: Mapping[str, str]) -> str:
    """The fingerprints as one line of `environment.json`.

    Example:
        >>> from_text(to_text({"kernels": "0a1b", "optim": "2c3d"}))
        {'kernels': '0a1b', 'optim': '2c3d'}
    """
    return " ".join(f"{room}={value}" for room, value in code.items())


def from_text(text: str) -> dict[str, str]:
    """The fingerprints that `to_text` wrote; those of an older record, without any, are empty."""
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def changed(recorded: str, top: str | None = None, now: Mapping[str, str] | None = None) -> bool:
    """Whether the code that a record depends on has changed since.

    Args:
        recorded: The entry "code" of its environment. A record without one is older than the
            fingerprints, and its code has changed.
        top: The highest room of the library that it runs: those above cannot change its numbers.
            All rooms count when omitted.
        now: Fingerprints to compare with; those of these sources when omitted.

    Example:
        >>> then = "optim=1 nn=2"
        >>> changed(then, "optim", {"optim": "1", "nn": "3"})
        False
        >>> changed(then, "nn", {"optim": "1", "nn": "3"})
        True
    """
    then, now = from_text(recorded), fingerprints() if now is None else now
    rooms = LIBRARY if top is None else LIBRARY[: LIBRARY.index(top) + 1]
    return not then or any(then.get(room) != now.get(room) for room in (*rooms, *LABORATORY))


def recorded(starts: Sequence[Mapping[str, str]]) -> str:
    """The commits of a run, and whether the code has changed since, in words.

    Args:
        starts: Its environments.

    Example:
        >>> recorded([{"commit": "abc1234"}])
        'recorded at abc1234; the code has changed since'
    """
    named = list(dict.fromkeys(start["commit"] for start in starts if start.get("commit")))
    at = " to ".join(dict.fromkeys((named[0], named[-1]))) if named else "an unknown commit"
    same = starts and not any(changed(start.get("code", "")) for start in starts)
    return f"recorded at {at}; the code {'is the same' if same else 'has changed since'}"


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".json"):
            name, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
            digest.update(f"{name}\n{_code(text) if path.suffix == '.py' else text}\n".encode())
    return digest.hexdigest()[:8]


def _code(source: str) -> str:
    """The source without comments, docstrings and blank lines."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            last = node.end_lineno or node.lineno
            lines[node.lineno - 1 : last] = [""] * (last - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())
