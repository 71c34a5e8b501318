"""The tables of the runs of evolution strategies."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from ...measure import balance
from ...runs.experiment import Table, Timing, Value
from ..statistics import spread
from . import claims, updates

GAIT = ("distance", "upright", "foot changes", "power")


def place(group: Mapping[str, Any]) -> str:
    """The task and the size of a group."""
    return f"{group['task']}, h = {group['hidden']}" if group["hidden"] else str(group["task"])


def tables(results: Mapping[str, Any], timing: Timing) -> list[Table]:
    """Returns, comparisons, gaits, searches; rho, throughput and the time of an update."""
    groups = results["groups"]
    shown = [_returns(groups, timing), _comparisons(groups)]
    if any(run["gait"] for group in groups for runs in group["methods"].values() for run in runs):
        shown.append(_gaits(groups))
    if results["searches"]:
        shown += [_chosen(results["searches"]), _trials(results["searches"])]
    if results["updates"]:
        shown.append(updates.table(results["updates"], timing))
    if results["batches"]:
        shown.append(_throughput(results["batches"], timing))
    if balances := balances_of(groups):
        named = [((group["task"], group["hidden"]), sizes) for group, sizes in balances]
        shown.append(balance.table(named, ("task", "d")))
    return shown


def balances_of(groups: Any) -> list[tuple[Mapping[str, Any], list[dict[str, Any]]]]:
    """The groups along which rho was measured, and what was, beside the value of pure noise."""
    found = []
    for group in groups:
        rows = [row for run in group["methods"].get(claims.OURS, []) for row in run.get("rho", ())]
        if rows:
            d = group["hidden"]
            sizes = balance.summarise(d, balance.sizes(d), rows)
            noise = balance.noise(d, balance.sizes(d))
            found.append((group, [{**size, "noise": noise[str(size["s"])]} for size in sizes]))
    return found


def _returns(groups: Any, timing: Timing) -> Table:
    rows: list[tuple[Value, ...]] = []
    for group in groups:
        for label, runs in group["methods"].items():
            found = spread([run["score"] for run in runs])
            low, high = claims.interval([run["score"] for run in runs])
            drifts = [run["drift"] for run in runs if run["drift"] is not None]
            moves = [run["moved"] for run in runs if run["moved"] is not None]
            known = [timing[r["cell"]]["seconds"] for r in runs if r["cell"] in timing]
            rows.append(
                (
                    group["task"],
                    group["hidden"] or None,
                    label,
                    len(runs),
                    found["mean"],
                    found["sd"],
                    low,
                    high,
                    group["generations"],
                    group["horizon"],
                    round(fmean(run["steps"] for run in runs)),
                    fmean(moves) if moves else None,
                    max(drifts, default=None),
                    fmean(known) if known else None,
                )
            )
    caption = (
        "Returns of the last policy in the original environment, in episodes with starts new to "
        "it; the interval is a bootstrap of the mean over seeds (95%). |dW|/|W| is the mean of all "
        "steps. Drift is the largest ||W^T W - I||_F / sqrt(d); ortinit-vanRNN drifts between its "
        "projections. The paper has curves only."
    )
    columns = (
        "task", "hidden", "method", "seeds", "mean return", "± (seeds)", "low", "high",
        "generations", "longest", "steps", "|dW|/|W|", "drift", "seconds a run",
    )  # fmt: skip
    return Table("returns", caption, columns, tuple(rows))


def _comparisons(groups: Any) -> Table:
    rows: list[tuple[Value, ...]] = []
    for group, methods in claims.beside_affine(groups):
        for pair in claims.comparisons(methods):
            word = "undecided"
            if pair["decided"]:
                word = "better" if pair["mean"] > 0 else "worse"
            rows.append(
                (
                    group["task"],
                    group["hidden"] or None,
                    pair["ours"],
                    pair["theirs"],
                    pair["seeds"],
                    pair["wins"],
                    pair["mean"],
                    pair["low"],
                    pair["high"],
                    word,
                )
            )
    caption = (
        "Differences of returns between methods with equal seeds, and their bootstrap intervals "
        f"(95%). With fewer than {claims.ALL_SEEDS} seeds nothing is decided."
    )
    columns = (
        "task", "hidden", "method", "less", "seeds", "of them above", "mean", "low", "high",
        "the first is",
    )  # fmt: skip
    return Table("comparisons", caption, columns, tuple(rows))


def _gaits(groups: Any) -> Table:
    rows: list[tuple[Value, ...]] = []
    for group in groups:
        for label, runs in group["methods"].items():
            gaits = [run["gait"] for run in runs if run["gait"]]
            if gaits:
                means = (
                    fmean(gait[name] for gait in gaits) if name in gaits[0] else None
                    for name in GAIT
                )
                rows.append((group["task"], group["hidden"] or None, label, *means))
    caption = (
        "How last policies move in the original environment, means over seeds and episodes: metres "
        "from start to end, part of the time with the torso within 60 degrees of the vertical, "
        "changes of the standing foot per second, and mechanical power of the joints in watts."
    )
    columns = ("task", "hidden", "method", "distance", "upright", "foot changes/s", "power")
    return Table("gaits", caption, columns, tuple(rows))


def _chosen(searches: Any) -> Table:
    rows = [
        (s["task"], s["hidden"] or None, s["method"], *_settings(s["settings"])) for s in searches
    ]
    caption = (
        "The settings that each method runs with: the best of its trials by successive halving. "
        "The trials have a seed of their own."
    )
    columns = ("task", "hidden", "method", "lr", "rate", "momentum", "sigma")
    return Table("settings", caption, columns, tuple(rows))


def _trials(searches: Any) -> Table:
    rows: list[tuple[Value, ...]] = []
    for s in searches:
        where = s["task"], s["hidden"] or None, s["method"]
        for trial in s["trials"]:
            rows.append((*where, *_settings(trial), trial["generations"], trial["score"]))
    caption = (
        "All trials, with the generations after which each was stopped, and the mean score of the "
        "second half of its curve."
    )
    columns = (
        "task", "hidden", "method", "lr", "rate", "momentum", "sigma", "generations", "score",
    )  # fmt: skip
    return Table("trials", caption, columns, tuple(rows))


def _settings(found: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(found[name] for name in ("lr", "rate", "momentum", "sigma"))


def _throughput(batches: Mapping[str, int], timing: Timing) -> Table:
    rows: list[tuple[Value, ...]] = []
    for cell, episodes in batches.items():
        clock = timing.get(cell, {})
        steps = clock.get("steps", 0)
        rates = [
            steps / clock[name] if clock.get(name) else None
            for name in ("rollout seconds", "generation seconds")
        ]
        rows.append((cell, episodes, round(steps), *rates, clock.get("seconds")))
    return Table(
        "throughput",
        "Steps of the environment per second: of rollouts, draws included; and of whole "
        "generations, with scores and optimiser steps. Only steps of episodes that were not over "
        "count, and the first generation of each start, which is compiled, does not.",
        ("cell", "episodes at once", "steps", "rollout steps/s", "steps/s", "seconds in all"),
        tuple(rows),
    )
