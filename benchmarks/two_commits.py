"""The time of a step at two commits, measured in turns: `python benchmarks/two_commits.py OLD NEW`.

Each commit is a source tree, such as a git worktree, with a process of its own. For every case the
processes take turns of a few milliseconds, so that both meet the same load of the machine; the
ratio of two turns that follow one another is one sample, and the median of these is the result.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import nn

PLAINNET_110 = [(16, 3, 3, 3), *[(16, 16, 3, 3)] * 36, (32, 16, 3, 3), *[(32, 32, 3, 3)] * 35,
                (64, 32, 3, 3), *[(64, 64, 3, 3)] * 35]  # fmt: skip
"""The shapes of its 109 convolutions."""

STEPS = {
    "s2": ("FlowSGD", {"block_size": 2}),
    "s8": ("FlowSGD", {"block_size": 8}),
    "exponential": ("FlowSGD", {"block_size": "dense"}),
    "polar": ("FlowSGD", {"block_size": "dense", "retraction": "polar"}),
    "adam-s2": ("FlowAdam", {"block_size": 2}),
}
ROWS = (64, 512, 2048)
TURN = 0.02
"""Seconds that a turn of small steps takes."""


def cases() -> list[str]:
    """All cases by name: the kind of step, and the rows of a square matrix or "convolutions"."""
    named = [f"{step}/{rows}" for step in STEPS for rows in ROWS]
    return [*named, "s2/convolutions", "auto/convolutions"]


def make(case: str, device: str):
    """A function that takes one step of this case."""
    from skewflow import optim
    from skewflow.nn import orthogonal_

    step, what = case.split("/")
    shapes = PLAINNET_110 if what == "convolutions" else [(int(what), int(what))]
    generator = torch.Generator().manual_seed(0)
    params = [
        nn.Parameter(orthogonal_(torch.empty(s), generator=generator).to(device)) for s in shapes
    ]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(device) / p.shape[0]
    name, options = STEPS.get(step, ("FlowSGD", {}))
    return getattr(optim, name)(params, lr=1e-3, **options).step


def timed(step, count: int, device: str) -> float:
    """Seconds of so many steps."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(count):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - start


def work(device: str, threads: int) -> None:
    """A process of one commit: for each case and count that it reads it writes the seconds."""
    torch.set_num_threads(threads)
    known = None, None
    for line in sys.stdin:
        case, count = json.loads(line)
        if known[0] != case:
            known = case, make(case, device)
            timed(known[1], 5, device)
        print(json.dumps(timed(known[1], count, device)), flush=True)


class Commit:
    """A source tree and its process."""

    def __init__(self, tree: Path, device: str, threads: int) -> None:
        command = [
            sys.executable,
            __file__,
            "--work",
            "--device",
            device,
            "--threads",
            str(threads),
        ]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        environment.setdefault("NUMBA_CACHE_DIR", str(tree / "__pycache__"))
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment
        )
        git = ["git", "-C", str(tree), "rev-parse", "HEAD"]
        self.revision = subprocess.run(git, capture_output=True, text=True).stdout.strip()

    def time(self, case: str, count: int) -> float:
        """Seconds of so many steps."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([case, count]) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(old: Commit, new: Commit, case: str, turns: int) -> dict[str, float]:
    """Ratio and times of one case."""
    once = min(old.time(case, 1), new.time(case, 1), old.time(case, 1))
    count = max(1, round(TURN / once))
    ratios, times = [], []
    for turn in range(turns):
        order = (old, new) if turn % 2 == 0 else (new, old)
        seconds = {commit: commit.time(case, count) / count for commit in order}
        ratios.append(seconds[new] / seconds[old])
        times.append((seconds[old], seconds[new]))
    quartiles = sorted(ratios)[turns // 4], sorted(ratios)[-1 - turns // 4]
    return {
        "ratio": median(ratios),
        "quartiles": quartiles,
        "old_us": 1e6 * median(t for t, _ in times),
        "new_us": 1e6 * median(t for _, t in times),
    }


def main() -> None:
    """Compare all cases, print them and record them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, help="the old and the new source tree")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--case", action="append", choices=cases(), help="only these")
    parser.add_argument("--out", type=Path, help="where to record the results as JSON")
    given = parser.parse_args()
    if given.work:
        work(given.device, given.threads)
        return
    old, new = (Commit(tree, given.device, given.threads) for tree in given.trees)
    results = {}
    for case in given.case or cases():
        results[case] = compare(old, new, case, given.turns)
        r = results[case]
        print(f"{case:20} {r['ratio']:.3f}  {r['old_us']:10.1f} {r['new_us']:10.1f} us", flush=True)
    old.close(), new.close()
    if given.out is not None:
        record = {
            "old": old.revision, "new": new.revision, "device": given.device,
            "threads": given.threads, "turns": given.turns, "processor": platform.processor(),
            "torch": torch.__version__, "results": results,
        }  # fmt: skip
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
