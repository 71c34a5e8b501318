"""How the runs of a race stand: their gaps, when they come to one, and which is in front."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

AUTO = ("auto", "auto-adam")
"""The methods whose block size is "auto"; the better one counts as "auto"."""
TINY = 1e-16


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


def final(run: Mapping[str, Any]) -> float:
    """The last gap; infinity of a run that failed."""
    return run["points"][-1][2] if run["failure"] is None else math.inf


def best_final(runs: Sequence[Mapping[str, Any]], floor: float) -> float | None:
    """The least last gap, or the floor if that is more; None if no run came to its end."""
    least = min(map(final, runs), default=math.inf)
    return max(floor, least) if math.isfinite(least) else None


def first(
    runs: Sequence[Mapping[str, Any]], gap: float | None
) -> tuple[float | None, float | None, Mapping[str, Any] | None]:
    """Seconds and steps of the run that is first at a gap, and that run; else the best one."""
    there = [
        (*found, run)
        for run in runs
        if run["failure"] is None
        and gap is not None
        and (found := reached(run["points"], gap)) is not None
    ]
    if there:
        return min(there, key=lambda each: each[0])
    return None, None, min(runs, key=final, default=None)
