"""`skewflow bench two-commits`: the time of a step at two commits, measured in turns."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import tyro

from ..runs.environment import environment
from ..runs.files import RunError, write_json
from . import _worker_of_a_commit
from .command import Device, check_rounds, show
from .step.weights import plainnet110

STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "s2": ("FlowSGD", {"block_size": 2}),
    "s8": ("FlowSGD", {"block_size": 8}),
    "exponential": ("FlowSGD", {"block_size": "dense"}),
    "polar": ("FlowSGD", {"block_size": "dense", "retraction": "polar"}),
    "adam-s2": ("FlowAdam", {"block_size": 2}),
    "auto": ("FlowSGD", {}),
}
"""Kinds of step: the optimiser and its options."""
ROWS = (64, 512, 2048)
"""Rows of the square matrices."""
CASES = (
    *(f"{step}/{rows}" for step in STEPS if step != "auto" for rows in ROWS),
    "s2/convolutions",
    "auto/convolutions",
)
"""A kind of step, and the rows of a matrix or the convolutions of PlainNet-110."""
TURN = 0.02
"""Shortest turn in seconds; a turn takes several small steps."""


def two_commits(
    trees: Annotated[tuple[Path, Path], tyro.conf.Positional],
    device: Device = "cpu",
    threads: int = 1,
    turns: int = 41,
    case: tuple[str, ...] = CASES,
    out: Path | None = None,
) -> None:
    """Compare the time of a step at two commits.

    Each commit is a source tree, such as a git worktree, and runs in a process. For every case the
    processes take turns of a few milliseconds, so that both see the same load of the machine. On
    a CPU the clock is the time of the process, which other processes do not delay.
    The ratio of two successive turns is one sample; the result is the median.

    Args:
        trees: The old and the new source tree.
        device: Device of the weights.
        threads: Threads of each process.
        turns: Turns of each process.
        case: A kind of step and a size, such as s2/512.
        out: The JSON file to write.
    """
    check_rounds(device, turns)
    wrong = [name for name in case if name not in CASES]
    if wrong:
        raise RunError(f"--case must be some of {', '.join(CASES)}: got {', '.join(wrong)}.")
    old, new = (_Commit(tree, device, threads) for tree in trees)
    rows = []
    for name in case:
        row = _compare(old, new, _case(name), turns)
        rows.append({"case": name, **row})
        show(f"{name:20} {row['ratio']:.3f}  {row['old_us']:10.1f} {row['new_us']:10.1f} us")
    old.close()
    new.close()
    if out is not None:
        record = {"old": old.revision, "new": new.revision, "device": device, "turns": turns}
        machine = environment(device) | {"threads": str(threads)}
        write_json(out, {**record, "environment": machine, "rows": rows})


def _case(name: str) -> dict[str, Any]:
    step, what = name.split("/")
    optimizer, options = STEPS[step]
    shapes = plainnet110() if what == "convolutions" else [(int(what), int(what))]
    return {"optimizer": optimizer, "options": options, "shapes": shapes}


class _Commit:
    """A source tree and its process."""

    def __init__(self, tree: Path, device: str, threads: int) -> None:
        variables = {**os.environ, "PYTHONPATH": str(tree / "src")}
        # numba's loops of older commits do not follow torch's number of threads.
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
        variables.setdefault("NUMBA_CACHE_DIR", str(tree / "__pycache__"))
        self._process = subprocess.Popen(
            [sys.executable, str(_worker_of_a_commit.__file__), device, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )
        git = ["git", "-C", str(tree), "rev-parse", "HEAD"]
        done = subprocess.run(git, capture_output=True, text=True, check=False)
        self.revision = done.stdout.strip()

    def time(self, case: dict[str, Any], count: int) -> float:
        """Seconds of `count` steps."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([case, count]), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _compare(old: _Commit, new: _Commit, case: dict[str, Any], turns: int) -> dict[str, Any]:
    """Ratio and times of one case."""
    count = max(1, round(TURN / min(old.time(case, 1), new.time(case, 1), old.time(case, 1))))
    ratios, times = [], []
    for turn in range(turns):
        order = (old, new) if turn % 2 == 0 else (new, old)
        seconds = {commit: commit.time(case, count) / count for commit in order}
        ratios.append(seconds[new] / seconds[old])
        times.append((seconds[old], seconds[new]))
    ordered = sorted(ratios)
    return {
        "ratio": median(ratios),
        "quartiles": [ordered[turns // 4], ordered[-1 - turns // 4]],
        "old_us": 1e6 * median(t for t, _ in times),
        "new_us": 1e6 * median(t for _, t in times),
    }
