"""The runs of a final: their gaps, their times to a gap, and the medians of three seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

AUTO = {
    "auto": "FlowSGD",
    "auto-adam": "FlowAdam",
    "auto-natural": "natural steps",
    "auto-angle": "AngleSGD",
}
"""The methods with block size "auto" and their optimisers; the best of them counts as "auto"."""
TINY = 1e-16
"""Gaps and times are at least this before a division."""


def with_gaps(race: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs, each with the "points" of its curve: seconds, steps and gap, to six digits.

    Gaps are relative to that of the start. If the optimum is unknown, it is the best loss of all
    runs.
    """
    optimum = race["optimum"]
    if optimum is None:
        optimum = min((p["loss"] for run in race["runs"] for p in run["curve"]), default=0.0)
    scale = race["start"] - optimum or 1.0  # 0 if no run came below the start
    return [run | {"points": _points(run["curve"], optimum, scale)} for run in race["runs"]]


def _points(
    curve: Sequence[Mapping[str, float]], optimum: float, scale: float
) -> list[tuple[float, float, float]]:
    return [
        (float(f"{p['seconds']:.6g}"), p["steps"], float(f"{(p['loss'] - optimum) / scale:.6g}"))
        for p in curve
    ]


def solved_at(race: Mapping[str, Any]) -> float:
    """The loss at which a problem is solved and a run ends; minus infinity if it is unknown."""
    optimum = race["optimum"]
    return -math.inf if optimum is None else optimum + race["floor"] * (race["start"] - optimum)


def reached(points: Sequence[tuple[float, float, float]], gap: float) -> tuple[float, float] | None:
    """Seconds and steps after which a run keeps this gap, by logarithmic interpolation.

    With batches a loss fluctuates, so a single low evaluation does not count.

    Example:
        >>> reached([(0.0, 0, 1.0), (1.0, 10, 0.1), (2.0, 20, 0.001)], 0.01)
        (1.5, 15.0)
    """
    above = next((i for i in reversed(range(len(points))) if points[i][2] > gap), -1)
    if above + 1 == len(points):
        return None
    t, n, g = points[above + 1]
    if above < 0:
        return t, n
    t0, n0, g0 = points[above]
    part = math.log(g0 / gap) / math.log(g0 / max(g, TINY))
    return t0 + part * (t - t0), n0 + part * (n - n0)


Entry = Sequence[Mapping[str, Any]]
"""The runs of one method; their median counts."""


def entries(runs: Sequence[Mapping[str, Any]]) -> dict[str, Entry]:
    """The runs of each method."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        found.setdefault(run["method"], []).append(run)
    return {**found}


def until(entry: Entry, seconds: float) -> Entry:
    """The runs up to some seconds; their last gap is one that they keep."""
    return [{**run, "points": _points_until(run["points"], seconds)} for run in entry]


def _points_until(
    points: Sequence[tuple[float, float, float]], seconds: float
) -> list[tuple[float, float, float]]:
    """The points up to some seconds, the last one interpolated as in `reached`."""
    before = [point for point in points if point[0] <= seconds]
    after = points[len(before) :]
    if not before or not after:
        return before
    (t0, n0, g0), (t, n, g) = before[-1], after[0]
    part = (seconds - t0) / (t - t0)
    gap = g0 if min(g0, g) <= 0 else g0 * (g / g0) ** part
    return [*before, (seconds, n0 + part * (n - n0), max(gap, *(p[2] for p in after)))]


def _last_gap(run: Mapping[str, Any]) -> float:
    """The last gap; infinity for a failed run."""
    return run["points"][-1][2] if run["failure"] is None else math.inf


def final(entry: Entry) -> float:
    """The median of the last gaps; infinity if most runs failed."""
    return sorted(map(_last_gap, entry))[len(entry) // 2]


def _arrivals(entry: Entry, gap: float | None) -> list[tuple[float, float, int]]:
    """Seconds and steps of each run to a gap, infinity if it misses it, and its number; sorted."""
    found = []
    for n, run in enumerate(entry):
        there = None if gap is None or run["failure"] else reached(run["points"], gap)
        found.append((*(there or (math.inf, math.inf)), n))
    return sorted(found)


def typical(entry: Entry, gap: float | None) -> Mapping[str, Any]:
    """The median run by time to a gap; if most runs miss it, the median by last gap."""
    seconds, _, n = _arrivals(entry, gap)[len(entry) // 2]
    if math.isfinite(seconds):
        return entry[n]
    return sorted(entry, key=_last_gap)[len(entry) // 2]


def spread(entry: Entry, gap: float | None) -> tuple[float | None, float | None]:
    """The least and the largest time to a gap; None for a run that misses it."""
    times = [seconds for seconds, *_ in _arrivals(entry, gap)]
    low, high = (t if math.isfinite(t) else None for t in (times[0], times[-1]))
    return low, high


def best_final(found: Iterable[Entry], floor: float) -> float | None:
    """The least last gap of several methods, at least the floor; None if all failed."""
    least = min(map(final, found), default=math.inf)
    return max(floor, least) if math.isfinite(least) else None


def arrival(entry: Entry, gap: float | None) -> tuple[float | None, float | None]:
    """The median seconds and steps to a gap; None if most runs miss it."""
    seconds, steps, _ = _arrivals(entry, gap)[len(entry) // 2]
    return (seconds, steps) if math.isfinite(seconds) else (None, None)
