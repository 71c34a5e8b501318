"""How the runs of a race stand: their gaps, when they come to one, and which is in front."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

AUTO = {"auto": "FlowSGD", "auto-adam": "FlowAdam", "auto-natural": "natural steps"}
"""The methods whose block size is "auto", and what they are; the best one counts as "auto"."""
TINY = 1e-16
LAST = 3
"""The heat whose runs count together."""


def with_gaps(race: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs, each with the "points" of its curve: seconds, steps and gap, to six digits.

    Gaps are relative to that of the start; where the optimum is not known, the best loss that
    anybody has seen stands for it.
    """
    optimum = race["optimum"]
    if optimum is None:
        optimum = min((p["loss"] for run in race["runs"] for p in run["curve"]), default=0.0)
    scale = race["start"] - optimum or 1.0  # nobody came below the start
    return [run | {"points": _points(run["curve"], optimum, scale)} for run in race["runs"]]


def _points(
    curve: Sequence[Mapping[str, float]], optimum: float, scale: float
) -> list[tuple[float, float, float]]:
    return [
        (float(f"{p['seconds']:.6g}"), p["steps"], float(f"{(p['loss'] - optimum) / scale:.6g}"))
        for p in curve
    ]


def solved_at(race: Mapping[str, Any]) -> float:
    """The loss at which a problem is solved, and a run of it done; minus infinity if not known."""
    optimum = race["optimum"]
    return -math.inf if optimum is None else optimum + race["floor"] * (race["start"] - optimum)


def reached(points: Sequence[tuple[float, float, float]], gap: float) -> tuple[float, float] | None:
    """Seconds and steps after which a run keeps this gap, between looks on a logarithmic scale.

    With batches a loss goes up and down: a look that happens to lie low is no arrival.

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
"""Runs of one method with one setting, of which the one in the middle counts."""


def entries(runs: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """What counts of all runs: of a method in the last heat its runs there, else each by itself.

    A run that was picked out of many since it was fast may have been lucky. Those of the last heat
    were picked before they ran; there all with one setting belong together.
    """
    last = [run for run in runs if run.get("heat") == LAST]
    methods = {run["method"] for run in last}
    together: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for run in last:
        together.setdefault((run["method"], run["exponent"], run["momentum"]), []).append(run)
    return [*([run] for run in runs if run["method"] not in methods), *together.values()]


def until(found: Sequence[Entry], seconds: float) -> list[Entry]:
    """The same runs after so many seconds, with the gap that they have from then on."""
    return [[{**run, "points": _points_until(run["points"], seconds)} for run in e] for e in found]


def _points_until(
    points: Sequence[tuple[float, float, float]], seconds: float
) -> list[tuple[float, float, float]]:
    """Between looks on a logarithmic scale, as in `reached`, which also asks for what is kept."""
    before = [point for point in points if point[0] <= seconds]
    after = points[len(before) :]
    if not before or not after:
        return before
    (t0, n0, g0), (t, n, g) = before[-1], after[0]
    part = (seconds - t0) / (t - t0)
    gap = g0 if min(g0, g) <= 0 else g0 * (g / g0) ** part
    return [*before, (seconds, n0 + part * (n - n0), max(gap, *(p[2] for p in after)))]


def _last_gap(run: Mapping[str, Any]) -> float:
    """The last gap; infinity of a run that failed."""
    return run["points"][-1][2] if run["failure"] is None else math.inf


def final(entry: Entry) -> float:
    """The last gap, that in the middle of several; infinity if most of them failed."""
    return sorted(map(_last_gap, entry))[len(entry) // 2]


def _arrivals(entry: Entry, gap: float | None) -> list[tuple[float, float, int]]:
    """Seconds and steps of each run to a gap, infinity where it does not come, and its number."""
    found = []
    for n, run in enumerate(entry):
        there = None if gap is None or run["failure"] else reached(run["points"], gap)
        found.append((*(there or (math.inf, math.inf)), n))
    return sorted(found)


def typical(entry: Entry, gap: float | None) -> Mapping[str, Any]:
    """The run in the middle by its time to a gap; if most do not come there, by its last gap."""
    seconds, _, n = _arrivals(entry, gap)[len(entry) // 2]
    if math.isfinite(seconds):
        return entry[n]
    return sorted(entry, key=_last_gap)[len(entry) // 2]


def spread(entry: Entry, gap: float | None) -> tuple[float | None, float | None]:
    """The least and the largest time to a gap; None where a run does not come there."""
    times = [seconds for seconds, *_ in _arrivals(entry, gap)]
    low, high = (t if math.isfinite(t) else None for t in (times[0], times[-1]))
    return low, high


def best_final(found: Sequence[Entry], floor: float) -> float | None:
    """The least last gap, or the floor if that is more; None if no run came to its end."""
    least = min(map(final, found), default=math.inf)
    return max(floor, least) if math.isfinite(least) else None


def first(
    found: Sequence[Entry], gap: float | None
) -> tuple[float | None, float | None, Entry | None]:
    """Seconds and steps of who is first at a gap, and who that is; else the best one."""
    times = [(*_arrivals(entry, gap)[len(entry) // 2][:2], n) for n, entry in enumerate(found)]
    seconds, steps, n = min(times, default=(math.inf, math.inf, 0))
    if math.isfinite(seconds):
        return seconds, steps, found[n]
    return None, None, min(found, key=final, default=None)
