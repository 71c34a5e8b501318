"""Medians of interleaved rounds: on shared machines only ratios inside one run mean anything."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch


def interleaved(
    steps: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    rounds: int = 7,
    seconds: float = 0.05,
    on_round: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Milliseconds per call of each step, once per round, every step in every round.

    Each visit repeats the step for about `seconds`, after a warm-up that also compiles it.
    """
    repeats = {name: _repeats(step, device, seconds) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(_time(step, repeats[name], device))
        on_round()
    return times


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> float:
    """The median over rounds of the ratio inside the round."""
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


def _repeats(step: Callable[[], object], device: torch.device, seconds: float) -> int:
    for _ in range(3):
        step()
    once = _time(step, 2, device) / 1e3
    return max(2, min(1000, round(seconds / max(once, 1e-7))))


def _time(step: Callable[[], object], repeats: int, device: torch.device) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        for _ in range(repeats):
            step()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / repeats
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    return 1e3 * (time.perf_counter() - began) / repeats
