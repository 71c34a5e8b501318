"""What came out of the races: seconds to the best rival's gap, tables, curves, verdict."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...runs.experiment import Figure, Table
from .heats import REPEATS
from .standing import (
    AUTO,
    TINY,
    Entry,
    best_final,
    entries,
    final,
    first,
    spread,
    typical,
    until,
    with_gaps,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

FEASIBLE = 1e-5
"""The largest distance to the manifold of a final point of ours, over sqrt(k)."""
BY_HAND = 1.3
"""How much slower than our best choice "auto" may be."""


def problem_summary(
    name: str,
    race: Mapping[str, Any],
    searches: Mapping[str, Mapping[str, Any]],
    ours: Sequence[str],
) -> dict[str, Any]:
    """The target of a problem, and a row for each method.

    The target is the best final gap of the rivals, or the floor where it is below. A second one is
    the best that our choices by hand have and keep when so much of the time is left that who is
    `BY_HAND` times slower comes there, too: at their last gap whoever is slower by a hair has not
    arrived. Of those who ran in the last heat its runs count, by the one in the middle; of the
    others their best run.
    """
    found = entries(with_gaps(race))
    target = _target([e for e in found if e[0]["method"] not in ours], race["floor"])
    by_hand = [e for e in found if e[0]["method"] in ours and e[0]["method"] not in AUTO]
    own_target = _target(until(by_hand, race["seconds"] / BY_HAND), race["floor"])
    autos = [entry for entry in found if entry[0]["method"] in AUTO]
    rows = []
    for method, search in searches.items():
        own = [entry for entry in found if entry[0]["method"] == method]
        rows.append(_row(method, own, search, target, method in ours))
        rows[-1]["own_seconds"] = first(own, own_target)[0]
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
        "behind": _behind(autos, by_hand, own_target),
        "best_peer": None if best is None else best["method"],
        "by_hand": None if hand is None else hand["method"],
        "rows": rows,
    }


def _target(found: Sequence[Entry], floor: float) -> float | None:
    """The best final gap of those who ran in the last heat, if some did."""
    return best_final([entry for entry in found if len(entry) > 1] or found, floor)


def _behind(autos: Sequence[Entry], by_hand: Sequence[Entry], target: float | None) -> float | None:
    """The run of "auto" over the time after which our choices by hand had its best final gap.

    How much slower "auto" is where it does not come to their gap; None where it does, or where it
    has made no progress at all.
    """
    gap = best_final(autos, 0.0)
    if gap is None or target is None or not target < gap < 1:
        return None
    sooner, _, _ = first(by_hand, gap)
    whole = typical(min(autos, key=final), None)["points"][-1][0]
    return None if sooner is None else whole / max(sooner, TINY)


def which_auto(problem: Mapping[str, Any], to: str = "seconds") -> str | None:
    """Of the methods whose block size is "auto" the first at a target, else the best one."""
    rows = [row for row in problem["rows"] if row["method"] in AUTO]
    best = _fastest(rows, to) or _fastest(rows, "final_gap") or next(iter(rows), None)
    return None if best is None else best["method"]


def ratio(
    problem: Mapping[str, Any], method: str | None, other: str | None, to: str = "seconds"
) -> float | None:
    """Seconds of one to a target over those of another; infinity if only the other got there.

    Args:
        problem: From `problem_summary`.
        method: The one.
        other: The other; without one of them there is no ratio.
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
    """How "auto" compares with the best rival, with our other choices, and where it ended."""
    problems = results["problems"]
    peer = _ratios({p["name"]: _to_peer(p) for p in problems})
    own = _ratios({p["name"]: _to_hand(p) for p in problems})
    parts = []
    if peer:
        lost = [f"{name} ({_times(r)})" for name, r in peer.items() if r > 1]
        half = sum(r <= 0.5 for r in peer.values())
        parts.append(
            f'"auto" comes to the gap of the best rival in at most its time on '
            f"{len(peer) - len(lost)} of {len(peer)} problems, in at most half of it on {half}"
            + (f"; it loses on {', '.join(lost)}" if lost else "")
        )
    else:
        parts.append('no problem has both "auto" and a rival')
    behind = {p["name"]: p.get("behind") for p in problems}
    slow = [f"{name} ({_times(r, behind[name])})" for name, r in own.items() if r > BY_HAND]
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
    """One row for each problem, and one for each method on each."""
    problems = Table(
        "problems",
        'Seconds until the best final gap of the best rival, of that rival and of "auto", the '
        "ratio; then the same for the best of our own choices by hand, until the best gap that "
        f"they have at 1 / {BY_HAND:g} of the time; where "
        '"auto" does not come to that, it says so, with its whole run over the time after which '
        "those had its best final gap. Of those in front, of ours and of the rivals, a last heat "
        f"counts, {REPEATS} runs of each of one or two settings, with batches in {REPEATS} orders, "
        "by the one in the middle. "
        "Like a library "
        'with SGD and Adam, "auto" enters with FlowSGD (auto), FlowAdam (auto-adam) and, where '
        "gradients are products of factors, natural steps (auto-natural), and the best one counts, "
        "which is named. A gap is "
        "relative to that of the start, and is taken at the nearest orthonormal matrix, wherever a "
        "method is; the error says how far that is, ||X^T X - I||_F / sqrt(k). Steps and gradients "
        "are on the clock, evaluations are not.",
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
        "Every method on every problem: its best setting, how many runs of it count, its final gap "
        "(a run that is solved stops) and its seconds to the gap of the best rival, those in the "
        "middle of the runs, and the least and largest seconds; milliseconds of a step and of the "
        "gradient in it, peak memory beside the problem (CUDA), largest distance of a last point "
        "to the manifold, and why it lost.",
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


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """A panel for each problem: "auto", our best, the best rivals; all others grey."""
    problems = results["problems"]
    columns = min(3, len(problems))
    lines = math.ceil(len(problems) / columns)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots(lines, columns, squeeze=False)
        for axis in axes.flat[len(problems) :]:
            axis.set_visible(False)
        for axis, problem in zip(axes.flat, problems, strict=False):
            done = [row for row in problem["rows"] if row["final_gap"] is not None]
            rivals = sorted((r for r in done if not r["ours"]), key=lambda r: r["final_gap"])
            own = sorted((r for r in done if r["ours"]), key=lambda r: r["final_gap"])
            named = [which_auto(problem), *(row["method"] for row in (*own[:1], *rivals[:3]))]
            for row in done:
                times, _, gaps = zip(*row["points"][1:], strict=True)  # the start has no logarithm
                look: dict[str, Any] = {"ls": "-" if row["ours"] else "--"}
                if row["method"] in named:
                    look |= {"label": row["method"], "zorder": 3}
                else:
                    look |= {"color": "#8c8c8c", "alpha": 0.5, "lw": 0.8}
                axis.loglog(times, [max(gap, 1e-9) for gap in gaps], **look)
            if problem["target"] is not None:
                axis.axhline(problem["target"], color="#8c8c8c", lw=0.8, ls=":")
            axis.set_title(problem["name"])
            if done:
                axis.legend(fontsize=7)
        for axis in axes[-1]:
            axis.set_xlabel("seconds")
        for axis in axes[:, 0]:
            axis.set_ylabel("gap")

    caption = (
        "Gap to the optimum, relative to that of the start, against seconds of steps. Solid: "
        "FlowSGD and FlowAdam. Dashed: the three best rivals by name, the others grey. Dotted: the "
        "best final gap of the rivals."
    )
    return [Figure("quality", caption, draw, (4.0 * columns, 2.9 * lines))]


def slow(step: float) -> str:
    """What the table says of a method whose search was cut short, by the seconds of a step."""
    return (
        f"a step takes {step:.2g} s, longer than a trial: one step at each of three rates, then "
        "one run"
    )


def _fastest(rows: Sequence[dict[str, Any]], to: str) -> dict[str, Any] | None:
    """Of those who ran in the last heat, if one of them came there; else of all."""
    there = [row for row in rows if row[to] is not None]
    there = [row for row in there if row.get("runs", 1) > 1] or there
    return min(there, key=lambda row: row[to], default=None)


def _row(
    method: str,
    found: Sequence[Entry],
    search: Mapping[str, Any],
    target: float | None,
    ours: bool,
) -> dict[str, Any]:
    """What the table says of a method: of its settings that which was first at the target."""
    seconds, steps, entry = first(found, target)
    row: dict[str, Any] = {"method": method, "ours": ours, "note": search["excuse"]}
    row |= dict.fromkeys(("lr", "momentum", "final_gap", "ms", "error"))
    row |= {"seconds": seconds, "steps": steps, "points": [], "runs": 0, "spread": (None, None)}
    row |= {key: search[key] for key in ("gradient_ms", "peak_bytes")}
    if entry is None:
        return row
    run = typical(entry, target)
    row |= {"lr": run["lr"], "momentum": run["momentum"], "points": run["points"]}
    row |= {"runs": len(entry), "spread": spread(entry, target)}
    if run["failure"] is not None:
        return row | {"note": run["failure"]}
    taken, count, _ = run["points"][-1]
    ended = [r for e in (found if len(entry) > 1 else [entry]) for r in e if r["failure"] is None]
    return row | {
        "final_gap": final(entry),
        "error": max(each["curve"][-1]["error"] for each in ended),
        "ms": 1e3 * taken / count,
    }


def _reason(row: Mapping[str, Any], best: Mapping[str, Any] | None) -> str | None:
    """Why a row is behind the best rival: more steps, dearer steps, or both."""
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
        _shown(_to_hand(p), p.get("behind")),
    )


def _cell_row(p: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[Any, ...]:
    memory = None if row["peak_bytes"] is None else row["peak_bytes"] / 2**20
    return (
        p["name"],
        row["method"],
        row["lr"],
        row["momentum"],
        row.get("runs"),  # earlier versions had one
        row["final_gap"],
        row["seconds"],
        *row.get("spread", (None, None)),
        _shown(ratio(p, row["method"], p["best_peer"])),
        row["ms"],
        row["gradient_ms"],
        memory,
        row["error"],
        row["note"],
    )


def _to_peer(p: Mapping[str, Any]) -> float | None:
    """Of "auto" to the best rival."""
    return ratio(p, which_auto(p), p["best_peer"])


def _to_hand(p: Mapping[str, Any]) -> float | None:
    """Of "auto" to our best choice by hand."""
    return ratio(p, which_auto(p, "own_seconds"), p["by_hand"], "own_seconds")


def _ratios(found: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in found.items() if value is not None}


def _shown(value: float | None, behind: float | None = None) -> float | str | None:
    """A ratio; where there is none, how much slower one is at its own last gap, if known."""
    if value != math.inf:
        return value
    return "not reached" if behind is None else f"not reached, {behind:.3g} at its own last gap"


def _times(value: float, behind: float | None = None) -> str:
    return f"{value:.2g} times" if value < math.inf else str(_shown(value, behind))
