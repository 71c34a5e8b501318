"""What is shown of the runs of evolution strategies."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ...measure import balance
from ...runs.experiment import Figure, Table, Timing, Value, Video
from ...runs.files import RunError
from . import updates as _updates

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

FEW = 4
"""With fewer seeds of two equal methods, all of one lie above all of the other too often: with
three of each once in ten times."""


def verdict(results: Mapping[str, Any]) -> str:
    """The mean of each method, and whether seeds differ more than methods do."""
    told = []
    for group in results["groups"]:
        scores = {label: [run["score"] for run in runs] for label, runs in group["methods"].items()}
        ranked = sorted(scores, key=lambda label: -fmean(scores[label]))
        listed = ", ".join(
            f"{label} {fmean(scores[label]):.0f} ({min(scores[label]):.0f} to "
            f"{max(scores[label]):.0f})"
            for label in ranked
        )
        told.append(
            f"{_place(group)}, after {group['generations']} generations: "
            f"{listed}{_apart(ranked, scores)}"
        )
    told += [
        f"Along stoch-ortRNN on {_place(group)}, {balance.verdict(sizes)}"
        for group, sizes in _balances(results)
    ]
    return f"Mean return of the last policy, with the least and largest seed. {'. '.join(told)}."


def tables(results: Mapping[str, Any], timing: Timing) -> list[Table]:
    """Returns by task, size and method; rho and the time of an update, if they were measured."""
    rows = []
    for group in results["groups"]:
        for label, runs in group["methods"].items():
            scores = [run["score"] for run in runs]
            drifts = [run["drift"] for run in runs if run["drift"] is not None]
            known = [timing[r["cell"]]["seconds"] for r in runs if r["cell"] in timing]
            rows.append(
                (
                    group["task"],
                    group["hidden"] or None,
                    label,
                    len(runs),
                    group["generations"],
                    group["num_scores"],
                    group["horizon"],
                    fmean(scores),
                    min(scores),
                    max(scores),
                    round(fmean(run["steps"] for run in runs)),
                    max(drifts, default=None),
                    fmean(known) if known else None,
                )
            )
    shown = [
        Table(
            "returns",
            "Returns of the last policy in the original environment, over episodes of at most so "
            "many steps; mean, least and largest seed. The paper has curves only. Drift is the "
            "largest ||W^T W - I||_F / sqrt(d) of the run; ortinit-vanRNN drifts between its "
            "projections.",
            (
                "task",
                "hidden",
                "method",
                "seeds",
                "generations",
                "episodes",
                "longest",
                "mean return",
                "least",
                "largest",
                "steps simulated",
                "drift",
                "seconds a run",
            ),
            tuple(rows),
        )
    ]
    if results.get("updates"):
        shown.append(_updates.table(results["updates"], timing))
    if results.get("lots"):
        shown.append(_throughput(results["lots"], timing))
    if balances := _balances(results):
        named = [((group["task"], group["hidden"]), sizes) for group, sizes in balances]
        shown.append(balance.table(named, ("task", "d")))
    return shown


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


def merge(
    parts: Sequence[tuple[Mapping[str, Any], Timing]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results and clocks of runs of different tasks or sizes as one.

    Cells of one task at two sizes have the same name: the second has the number of its run.

    Raises:
        RunError: If two of them hold the same.
    """
    merged: dict[str, Any] = {"updates": {}, "lots": {}, "groups": []}
    clocks: dict[str, Any] = {}
    for n, (part, timing) in enumerate(parts, 1):
        cells = part.get("lots", {})  # runs of earlier versions have none
        renamed = {cell: f"{cell},run={n}" for cell in cells if cell in merged["lots"]}
        merged["lots"] |= {renamed.get(cell, cell): many for cell, many in cells.items()}
        clocks |= {renamed.get(cell, cell): clock for cell, clock in timing.items()}
        merged["updates"] |= part.get("updates", {})
        merged["groups"] += part["groups"]
    places = [_place(group) for group in merged["groups"]]
    for place in places:
        if places.count(place) > 1:
            raise RunError(
                f"runs that are collected must differ in task or size: {place} is in two of them. "
                "Leave one out."
            )
    return merged, clocks


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """A panel for each task and size: the mean of the seeds, and their range. And rho."""
    panels = _panels(results["groups"])
    columns = min(3, len(panels))
    height = -(-len(panels) // columns)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots(height, columns, squeeze=False).ravel()
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, (title, methods) in zip(axes, panels.items(), strict=False):
            for n, (label, runs) in enumerate(methods.items()):
                seeds = list(zip(*(run["curve"] for run in runs), strict=True))
                at = range(len(seeds))
                axis.plot(at, [fmean(s) for s in seeds], color=f"C{n}", label=label)
                low, high = [min(s) for s in seeds], [max(s) for s in seeds]
                axis.fill_between(at, low, high, color=f"C{n}", alpha=0.2, linewidth=0)
            axis.set(title=title, xlabel="generation", ylabel="return")
            axis.legend(fontsize="small")

    caption = (
        "Return of the unperturbed policy in the original environment, in each generation: mean "
        "of the seeds, and their range shaded."
    )
    shown = [Figure("curves", caption, draw, (3.2 * columns + 1.0, 3.0 * height + 0.6))]
    for group, sizes in _balances(results):
        runs = group["methods"]["stoch-ortRNN"]
        curves = {run["cell"]: run["rho"] for run in runs if "rho" in run}  # or never moved
        caption = f"rho along stoch-ortRNN on {_place(group)}"
        shown.append(balance.figure(f"rho-{_file(group)}", sizes, curves, caption, "generation"))
    return shown


def casts(results: Mapping[str, Any]) -> list[tuple[Video, list[tuple[str, str]]]]:
    """The videos and their labels, and the cells of the best seeds."""
    found: list[tuple[Video, list[tuple[str, str]]]] = []
    together: dict[str, list[tuple[str, str]]] = {}
    for group in results["groups"]:
        cast = []
        for label, runs in group["methods"].items():
            best = max(runs, key=lambda run: run["score"])
            cast.append((label, best["cell"]))
            caption = (
                f"{_place(group)}, {label}: an episode of the last policy, of the best of "
                f"{len(runs)} seeds (mean return {best['score']:.0f}), with the return so far."
            )
            name = f"{_file(group)}-{label.replace(' ', '-')}"
            found.append((Video(name, caption), [cast[-1]]))
        together[_file(group)] = cast
    for group in results["groups"]:
        # An affine policy has no size: it stands beside those of every size.
        plain = together.get(group["task"], []) if group["hidden"] else []
        cast = together[_file(group)] + plain
        if len(cast) > 1:
            caption = f"{_place(group)}: the best policy of each method, the same instant of each."
            found.append((Video(f"{_file(group)}-all", caption), cast))
    return found


def _panels(groups: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The methods that are drawn together; an affine policy is drawn with those of every size."""
    plain = {group["task"]: group["methods"] for group in groups if not group["hidden"]}
    sized = {group["task"] for group in groups if group["hidden"]}
    return {
        _place(group): {**group["methods"], **(plain.get(group["task"], {}))}
        for group in groups
        if group["hidden"] or group["task"] not in sized
    }


def _balances(results: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], list[dict[str, Any]]]]:
    """The groups along which rho was measured, and what was."""
    found = []
    for group in results["groups"]:
        runs = group["methods"].get("stoch-ortRNN", [])
        rows = [row for run in runs for row in run.get("rho", ())]
        if rows:
            d = group["hidden"]
            found.append((group, balance.summarise(d, balance.sizes(d), rows)))
    return found


def _file(group: Mapping[str, Any]) -> str:
    return f"{group['task']}-{group['hidden']}" if group["hidden"] else group["task"]


def _place(group: Mapping[str, Any]) -> str:
    return f"{group['task']}, h = {group['hidden']}" if group["hidden"] else group["task"]


def _apart(ranked: Sequence[str], scores: Mapping[str, Sequence[float]]) -> str:
    """Whether the first method is clear of the second: its worst seed above the other's best."""
    if len(ranked) < 2:
        return ""
    first, second = ranked[:2]
    if min(len(scores[first]), len(scores[second])) < FEW:
        return f"; fewer than {FEW} seeds rank nothing"
    if min(scores[first]) > max(scores[second]):
        return f"; every seed of {first} is above every seed of {second}"
    return f"; the seeds of {first} and {second} overlap, so this does not rank them"
