"""Times of steps in interleaved rounds: on busy machines only ratios within a run are reliable."""

import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from statistics import median, quantiles

import torch

Step = Callable[[], object]
"""A function to time."""


def interleaved(
    steps: MutableMapping[str, Step],
    device: torch.device,
    *,
    rounds: int = 7,
    seconds: float = 0.05,
    on_visit: Callable[[], None] = lambda: None,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Milliseconds per call of each step, once per round, every step in every round.

    Each visit repeats the step for about `seconds`, after a warm-up that also compiles it. A step
    that raises is removed from `steps`, with all it holds in memory, and the others go on.

    Args:
        steps: The functions to time, by name.
        device: The device of the steps.
        rounds: Number of visits to each step, without the warm-up.
        seconds: Length of a visit, which has at least one call.
        on_visit: Called `(rounds + 1) * len(steps)` times if nothing fails.

    Returns:
        The times of the steps that never failed, and the reasons of the others.
    """
    repeats: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in steps}
    failures: dict[str, str] = {}
    for turn in range(rounds + 1):
        for name in list(steps):
            try:
                if turn == 0:
                    repeats[name] = _repeats(steps[name], device, seconds)
                else:
                    times[name].append(_time(steps[name], repeats[name], device))
            except Exception as error:
                failures[name] = reason(error)
            if name in failures:  # outside of the handler, whose traceback keeps the memory alive
                del steps[name], times[name]
            on_visit()
    return times, failures


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> float:
    """The median over all rounds of the ratio within a round."""
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


def percentiles(values: Sequence[float]) -> dict[str, str]:
    """The 20th, 50th and 80th percentile, to four digits."""
    tenths = quantiles([*values, *values], n=10, method="inclusive")  # doubled: one value will do
    return {name: f"{tenths[i]:.4g}" for name, i in (("p20", 1), ("p50", 4), ("p80", 7))}


def reason(error: Exception) -> str:
    """An error in one line of a table."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."


def _repeats(step: Step, device: torch.device, seconds: float) -> int:
    step()
    once = _time(step, 1, device) / 1e3
    if once < seconds:  # a slow step has been called often enough
        step()
        once = _time(step, 3, device) / 1e3
    return max(1, min(1000, round(seconds / max(once, 1e-7))))


def _time(step: Step, repeats: int, device: torch.device) -> float:
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
