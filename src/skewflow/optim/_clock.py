"""Seconds as the device sees them."""

import math
import time
from collections.abc import Callable
from statistics import median

import torch

REPEATS = 3
"""Of a step that is tried."""

Stamp = float | torch.cuda.Event


class Clock:
    """Times steps and what lies between them, on CUDA by events, which nobody waits for.

    Args:
        device: Where the steps work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begins: list[Stamp] = []
        self._ends: list[Stamp] = []

    def begin(self) -> None:
        """A step begins; one that has not ended, since it has failed, is forgotten."""
        del self._begins[len(self._ends) :]
        self._begins.append(_now(self._device))

    def end(self) -> None:
        """It has ended."""
        self._ends.append(_now(self._device))

    def step(self) -> float:
        """Seconds of the fastest step that has ended; on CUDA this waits."""
        pairs = zip(self._begins, self._ends, strict=False)
        return min((_between(a, b) for a, b in pairs), default=math.inf)

    def between(self) -> float:
        """The least seconds from the end of a step to the beginning of the next; likewise."""
        pairs = zip(self._ends, self._begins[1:], strict=False)
        return min((_between(a, b) for a, b in pairs), default=0.0)


def seconds_of(step: Callable[[], object], device: torch.device) -> float:
    """Seconds of a step; the first call, which may compile, does not count. On CUDA it waits."""
    step()
    found = []
    for _ in range(REPEATS):
        start = _now(device)
        step()
        found.append(_between(start, _now(device)))
    return median(found)


def _now(device: torch.device) -> Stamp:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _between(a: Stamp, b: Stamp) -> float:
    if isinstance(a, torch.cuda.Event) and isinstance(b, torch.cuda.Event):
        b.synchronize()
        return float(a.elapsed_time(b)) / 1e3
    assert isinstance(a, float) and isinstance(b, float)
    return b - a
