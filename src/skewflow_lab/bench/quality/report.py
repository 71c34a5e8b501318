"""The results of the finals: seconds to the best rival's gap, tables and verdict."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...runs.experiment import Table
from .standing import (
    AUTO,
    TINY,
    Entry,
    arrival,
    best_final,
    entries,
    final,
    spread,
    typical,
    until,
    with_gaps,
)

FEASIBLE = 1e-5
"""Largest accepted distance to the manifold of our final points, over sqrt(k)."""
BY_HAND = 1.3
"""Largest accepted ratio of the time of "auto" to that of our best choice by hand."""


def problem_summary(
    name: str,
    race: Mapping[str, Any],
    searches: Mapping[str, Mapping[str, Any]],
    ours: Sequence[str],
) -> dict[str, Any]:
    """The target of a problem, and a row for each method.

    The target is the best final gap of the rivals, but at least the floor. A second target is the
    best gap of our fixed settings after 1 / `BY_HAND` of the time, so that a method that is
    `BY_HAND` times slower can still reach it.
    """
    found = entries(with_gaps(race))
    target = best_final((e for m, e in found.items() if m not in ours), race["floor"])
    by_hand = [e for m, e in found.items() if m in ours and m not in AUTO]
    own_target = best_final((until(e, race["seconds"] / BY_HAND) for e in by_hand), race["floor"])
    rows = []
    for method, search in searches.items():
        entry = found.get(method)
        rows.append(_row(method, entry, search, target, method in ours))
        rows[-1]["own_seconds"] = arrival(entry, own_target)[0] if entry else None
    best = _fastest([row for row in rows if not row["ours"]], "seconds")
    hand = _fastest([r for r in rows if r["ours"] and r["method"] not in AUTO], "own_seconds")
    for row in rows:
        notes = (row["note"] or _reason(row, best), searches[row["method"]]["remark"])
        row["note"] = "; ".join(filter(None, notes)) or None
    return {
        "name": name,
        "shape": race["shape"],
        "budget": race["seconds"],
        "known_optimum": race["optimum"] is not None,
        "target": target,
        "own_target": own_target,
        "best_peer": None if best is None else best["method"],
        "by_hand": None if hand is None else hand["method"],
        "rows": rows,
    }


def which_auto(problem: Mapping[str, Any], to: str = "seconds") -> str | None:
    """The method with block size "auto" that reaches a target first, else the best of them."""
    rows = [row for row in problem["rows"] if row["method"] in AUTO]
    best = _fastest(rows, to) or _fastest(rows, "final_gap") or next(iter(rows), None)
    return None if best is None else best["method"]


def ratio(
    problem: Mapping[str, Any], method: str | None, other: str | None, to: str = "seconds"
) -> float | None:
    """Seconds of one method to a target over those of another; infinity if only the other arrives.

    Args:
        problem: The summary by `problem_summary`.
        method: The method of the numerator.
        other: The method of the denominator; if one of the two is None, there is no ratio.
        to: "seconds", to the best final gap of the rivals, or "own_seconds", to the gap that our
            choices by hand set.
    """
    seconds = {row["method"]: row[to] for row in problem["rows"]}
    if method is None or other is None or seconds[other] is None or method not in seconds:
        return None
    if seconds[method] is None:
        return math.inf
    return seconds[method] / max(seconds[other], TINY)


def verdict(results: Mapping[str, Any]) -> str:
    """Compare "auto" with the best rival and with our other settings, in words."""
    problems = results["problems"]
    peer = _ratios({p["name"]: _to_peer(p) for p in problems})
    own = _ratios({p["name"]: _to_hand(p) for p in problems})
    parts = []
    if peer:
        lost = [f"{name} ({_times(r)})" for name, r in peer.items() if r > 1]
        half = sum(r <= 0.5 for r in peer.values())
        parts.append(
            f'"auto" reaches the gap of the best rival in at most its time on '
            f"{len(peer) - len(lost)} of {len(peer)} problems, in at most half of it on {half}"
            + (f"; it loses on {', '.join(lost)}" if lost else "")
        )
    else:
        parts.append('no problem has both "auto" and a rival')
    slow = [f"{name} ({_times(r)})" for name, r in own.items() if r > BY_HAND]
    if own:
        where = f"on {', '.join(slow)}" if slow else "nowhere"
        parts.append(f"more than {BY_HAND:g} times slower than our best choice by hand {where}")
    entered = [m for m in AUTO if any(r["method"] == m for p in problems for r in p["rows"])]
    if len(entered) > 1:
        best = {m: [p["name"] for p in problems if which_auto(p) == m] for m in entered}
        on = "; ".join(f"{AUTO[m]} on {', '.join(names)}" for m, names in best.items() if names)
        parts.append(f'"auto" is the best of {", ".join(AUTO[m] for m in entered)}: {on}')
    errors = [r["error"] for p in problems for r in p["rows"] if r["ours"] and r["error"]]
    if errors:
        inside = "inside" if max(errors) <= FEASIBLE else "beyond"
        parts.append(
            f"our farthest final point is {max(errors):.1e} from the manifold, {inside} "
            f"{FEASIBLE:.0e}"
        )
    return "; ".join(parts) + "."


def tables(results: Mapping[str, Any]) -> list[Table]:
    """A table of the problems, and one of every method on every problem."""
    problems = Table(
        "problems",
        'Seconds of the best rival and of "auto" to the best final gap of the rivals, and their '
        "ratio; then the same for our best choice by hand, to the best gap that our choices "
        f"have after 1 / {BY_HAND:g} of the time. Every method runs three times, with batches in "
        'three orders, and the medians count. "auto" is the best of FlowSGD (auto), FlowAdam '
        "(auto-adam), AngleSGD (auto-angle) and, for gradients in factors, natural steps "
        "(auto-natural), as rivals enter with SGD and Adam. The rate of steps of fixed length "
        "(AngleSGD, SPEL, iMuon, manifold Muon) falls on a line to zero at the end of a run. A gap "
        "is relative to the first one, and belongs to the nearest orthonormal matrix; the error is "
        "the distance to it, ||X^T X - I||_F / sqrt(k). Steps and gradients are on the clock, "
        "evaluations are not.",
        (
            "problem",
            "shape",
            "budget, s",
            "gap",
            "best rival",
            "its error",
            "its s",
            "which auto",
            "auto, s",
            "auto / rival",
            "own gap",
            "by hand",
            "its s",
            "which auto",
            "auto, s",
            "auto / by hand",
        ),
        tuple(_problem_row(p) for p in results["problems"]),
    )
    cells = Table(
        "cells",
        "Every method on every problem: its setting, the number of runs, the medians of its "
        "final gap (a run that is solved stops) and of its seconds to the gap of the best "
        "rival, and the least and largest seconds; milliseconds of a step and of its gradient, "
        "peak memory without the problem's (CUDA), the largest distance of a last point to the "
        "manifold, and why it lost.",
        (
            "problem",
            "method",
            "lr",
            "momentum",
            "runs",
            "final gap",
            "s to gap",
            "least",
            "largest",
            "over rival",
            "ms a step",
            "of it gradient",
            "MB",
            "error",
            "note",
        ),
        tuple(_cell_row(p, row) for p in results["problems"] for row in p["rows"]),
    )
    return [problems, cells]


def _fastest(rows: Sequence[dict[str, Any]], to: str) -> dict[str, Any] | None:
    """The row with the least value; None if no row has one."""
    return min((r for r in rows if r[to] is not None), key=lambda row: row[to], default=None)


def _row(
    method: str, entry: Entry | None, search: Mapping[str, Any], target: float | None, ours: bool
) -> dict[str, Any]:
    """The row of a method in the table."""
    row: dict[str, Any] = {"method": method, "ours": ours, "note": search["excuse"]}
    row |= dict.fromkeys(("lr", "momentum", "final_gap", "ms", "error", "seconds", "steps"))
    row |= {"points": [], "runs": 0, "spread": (None, None)}
    row |= {key: search[key] for key in ("gradient_ms", "peak_bytes")}
    if entry is None:
        return row
    seconds, steps = arrival(entry, target)
    run = typical(entry, target)
    row |= {"seconds": seconds, "steps": steps, "lr": run["lr"], "momentum": run["momentum"]}
    row |= {"points": run["points"], "runs": len(entry), "spread": spread(entry, target)}
    if run["failure"] is not None:
        return row | {"note": run["failure"]}
    taken, count, _ = run["points"][-1]
    ended = [each for each in entry if each["failure"] is None]
    return row | {
        "final_gap": final(entry),
        "error": max(each["curve"][-1]["error"] for each in ended),
        "ms": 1e3 * taken / count,
    }


def _reason(row: Mapping[str, Any], best: Mapping[str, Any] | None) -> str | None:
    """The reason why a method is behind the best rival: more steps, or more expensive ones."""
    if best is None or row["ms"] is None or row["method"] == best["method"]:
        return None
    price = row["ms"] / best["ms"]
    if row["seconds"] is None:
        taken = row["points"][-1][1] / max(best["steps"], 1)
        return f"not reached with {taken:.2g} x the rival's steps, at {price:.2g} x the price each"
    if row["seconds"] <= best["seconds"]:
        return None
    count = row["steps"] / max(best["steps"], TINY)
    return f"{count:.2g} x the rival's steps, at {price:.2g} x the price each"


def _problem_row(p: Mapping[str, Any]) -> tuple[Any, ...]:
    rows = {row["method"]: row for row in p["rows"]}
    auto, own = which_auto(p), which_auto(p, "own_seconds")
    peer, hand = (rows.get(p[name], {}) for name in ("best_peer", "by_hand"))
    return (
        p["name"],
        " x ".join(map(str, p["shape"])),
        p["budget"],
        p["target"],
        p["best_peer"],
        peer.get("error"),
        peer.get("seconds"),
        auto,
        rows.get(auto, {}).get("seconds"),
        _shown(_to_peer(p)),
        p["own_target"],
        p["by_hand"],
        hand.get("own_seconds"),
        own,
        rows.get(own, {}).get("own_seconds"),
        _shown(_to_hand(p)),
    )


def _cell_row(p: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[Any, ...]:
    memory = None if row["peak_bytes"] is None else row["peak_bytes"] / 2**20
    return (
        p["name"],
        row["method"],
        row["lr"],
        row["momentum"],
        row["runs"],
        row["final_gap"],
        row["seconds"],
        *row["spread"],
        _shown(ratio(p, row["method"], p["best_peer"])),
        row["ms"],
        row["gradient_ms"],
        memory,
        row["error"],
        row["note"],
    )


def _to_peer(p: Mapping[str, Any]) -> float | None:
    """The ratio of "auto" to the best rival."""
    return ratio(p, which_auto(p), p["best_peer"])


def _to_hand(p: Mapping[str, Any]) -> float | None:
    """The ratio of "auto" to our best choice by hand."""
    return ratio(p, which_auto(p, "own_seconds"), p["by_hand"], "own_seconds")


def _ratios(found: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in found.items() if value is not None}


def _shown(value: float | None) -> float | str | None:
    """A ratio for the table."""
    return "not reached" if value == math.inf else value


def _times(value: float) -> str:
    return f"{value:.2g} times" if value < math.inf else "not reached"
