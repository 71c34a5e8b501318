"""Whether recorded numbers are older than the code, by the history of the checkout."""

import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .files import ROOT

READ_AND_WRITE = ("assets", "environment", "files", "lock", "records", "staleness")
"""Modules of `runs` that change no number."""

CODE = (
    ":(glob)src/**/*.py",
    *(f":(exclude,glob)src/skewflow_lab/{path}" for path in ("*", "report/**", "**/report.py")),
    *(f":(exclude)src/skewflow_lab/runs/{name}.py" for name in READ_AND_WRITE),
)
"""What a number depends on: all sources but those that only read, write and show results."""


def recorded(commits: Iterable[str], root: Path = ROOT) -> str:
    """When something was recorded, and whether the code has changed since, in words.

    Args:
        commits: What `environment` named as the commit of each start, in their order.
        root: The checkout to compare with.

    Example:
        >>> recorded([""])
        'recorded at an unknown commit'
    """
    named = list(dict.fromkeys(commit for commit in commits if commit))
    if not named:
        return "recorded at an unknown commit"
    text = "recorded at " + (named[0] if len(named) == 1 else f"{named[0]} to {named[-1]}")
    changed = {changed_since(commit, root) for commit in named}
    if True in changed:
        return f"{text}; the code has changed since"
    return text if None in changed else f"{text}; the code is the same"


@cache
def changed_since(commit: str, root: Path = ROOT) -> bool | None:
    """Whether the sources in `root` differ from those of a commit, None if that cannot be known.

    A commit with a plus had changes that no history knows: it may differ where the commit does not.
    """
    if not re.fullmatch(r"[0-9a-f]{7,40}\+?", commit):  # anything else could be an option of git
        return None
    words = ["git", "diff", "--quiet", commit.removesuffix("+"), "--", *CODE]
    try:
        done = subprocess.run(words, cwd=root, capture_output=True, check=False)
    except OSError:
        return None
    if done.returncode == 0 and not commit.endswith("+"):
        return False
    return True if done.returncode == 1 else None
