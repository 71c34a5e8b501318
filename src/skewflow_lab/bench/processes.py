"""`skewflow bench processes`: two processes that step on two cores, against a single one.

A ratio near 1 means that processes do not slow each other down. SGD shows the effect of the
machine's memory bandwidth.
"""

import os
import subprocess
import sys
import time
from statistics import median

import torch

from skewflow.geometry import haar
from skewflow.optim import FlowSGD

from ..measure.timing import Step
from .command import append_result, check_rounds, show

CASES = (
    *((d, k, 0, s) for d, k, s in ((64, 64, 2), (256, 64, 2), (256, 64, 8), (256, 256, 2))),
    *((d, d, 1, s) for d in (256, 1024) for s in (2, 8, 0)),
)
"""Rows, columns, threads of each process (0: as many as torch takes), block size (0: SGD)."""


def processes(rounds: int = 15, save: bool = False) -> None:
    """Time steps of two processes on two cores, against one of them while the other waits.

    Each process keeps torch's number of threads, or has one thread as under torchrun.

    Args:
        rounds: Interleaved rounds; numbers are medians over them.
        save: Append the milliseconds and ratios to results/bench/results.csv of the repository.
    """
    check_rounds("cpu", rounds, save)
    for case in CASES:
        d, k, threads, block_size = case
        single, together = _compare(case, rounds)
        ratios = [b / a for a, b in zip(single, together, strict=True)]
        method = f"s={block_size}" if block_size else "SGD"
        label = f"{d}x{k} {method} threads={threads or 'default'}"
        show(f"{label:34s} {median(single):8.3f} ms {median(ratios):6.2f} times with two")
        if save:
            append_result("processes", label, "ms, one process", single)
            append_result("processes", label, "time of two processes / of one", ratios)


def _make_step(d: int, k: int, block_size: int) -> Step:
    generator = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter(haar(d, k, generator=generator, dtype=torch.float32))
    p.grad = torch.randn(d, k, generator=generator)
    if not block_size:
        return torch.optim.SGD([p], lr=1e-4).step
    return FlowSGD([p], lr=1e-4, block_size=block_size).step


def _work() -> None:
    """A worker: for each number of seconds on stdin it prints the milliseconds of a step."""
    step = _make_step(*map(int, sys.argv[1:4]))
    for line in sys.stdin:
        seconds, calls = float(line), 0
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            step()
            calls += 1
        print((time.perf_counter() - began) / calls * 1e3, flush=True)


class Worker:
    """A process that takes steps on request."""

    def __init__(self, d: int, k: int, threads: int, block_size: int) -> None:
        environment = {name: v for name, v in os.environ.items() if name != "OMP_NUM_THREADS"}
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        sizes = map(str, (d, k, block_size))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.begin(0.01)  # compiles its kernels

    def begin(self, seconds: float) -> None:
        """Start steps for some seconds, without waiting for their end."""
        assert self._process.stdin is not None
        print(seconds, file=self._process.stdin, flush=True)

    def end(self) -> float:
        """Wait for the end; returns the milliseconds of a step."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _compare(case: tuple[int, int, int, int], rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a step in each round: of a single process, and of the slower of two."""
    both = Worker(*case), Worker(*case)
    for worker in both:
        worker.end()
    single, together = [], []
    for _ in range(rounds):
        both[0].begin(0.1)
        single.append(both[0].end())
        for worker in both:
            worker.begin(0.1)
        together.append(max(worker.end() for worker in both))
    for worker in both:
        worker.close()
    return single, together


if __name__ == "__main__":
    _work()
