"""Two processes that step on two cores, against one of them while the other waits.

Each process keeps torch's number of threads, or has one thread as under torchrun. A ratio near 1
means that processes do not disturb each other. SGD shows what the memory of the machine allows.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from record import record
from rich.console import Console

from skewflow.geometry import haar
from skewflow.optim import FlowSGD

CASES = (
    *((d, k, 0, s) for d, k, s in ((64, 64, 2), (256, 64, 2), (256, 64, 8), (256, 256, 2))),
    *((d, d, 1, s) for d in (256, 1024) for s in (2, 8, 0)),
)
"""Rows, columns, threads of each process (0: as many as torch takes), block size (0: SGD)."""


def make_step(d: int, k: int, block_size: int) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter(haar(d, k, generator=generator, dtype=torch.float32))
    p.grad = torch.randn(d, k, generator=generator)
    if not block_size:
        return torch.optim.SGD([p], lr=1e-4).step
    return FlowSGD([p], lr=1e-4, block_size=block_size).step


def work() -> None:
    """A worker: for each number of seconds on stdin it prints the milliseconds of a step."""
    step = make_step(*map(int, sys.argv[2:5]))
    for line in sys.stdin:
        seconds, calls = float(line), 0
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            step()
            calls += 1
        print((time.perf_counter() - began) / calls * 1e3, flush=True)


class Worker:
    """A process that steps when asked to."""

    def __init__(self, d: int, k: int, threads: int, block_size: int) -> None:
        environment = {name: v for name, v in os.environ.items() if name != "OMP_NUM_THREADS"}
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        sizes = map(str, (d, k, block_size))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.begin(0.01)  # it compiles
        self.end()

    def begin(self, seconds: float) -> None:
        """Let it step for some seconds; nothing waits for it."""
        assert self._process.stdin is not None
        print(seconds, file=self._process.stdin, flush=True)

    def end(self) -> float:
        """Wait for it; the milliseconds of a step."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(case: tuple[int, int, int, int], rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a step of one process alone, and of the slower one of two, in each round."""
    both = Worker(*case), Worker(*case)
    alone, together = [], []
    for _ in range(rounds):
        both[0].begin(0.1)
        alone.append(both[0].end())
        for worker in both:
            worker.begin(0.1)
        together.append(max(worker.end() for worker in both))
    for worker in both:
        worker.close()
    return alone, together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="append to benchmarks/data/results.csv")
    args = parser.parse_args()
    out = Console()
    for case in CASES:
        d, k, threads, block_size = case
        alone, together = compare(case, args.rounds)
        ratios = [b / a for a, b in zip(alone, together, strict=True)]
        method = f"s={block_size}" if block_size else "SGD"
        label = f"{d}x{k} {method} threads={threads or 'default'}"
        out.print(f"{label:34s} {median(alone):8.3f} ms {median(ratios):6.2f} times with two")
        if args.save:
            record("processes", label, "ms, one process", alone)
            record("processes", label, "time of two processes / of one", ratios)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work()
    else:
        main()
