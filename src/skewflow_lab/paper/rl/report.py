"""What is shown of the runs of evolution strategies."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ...measure import balance
from ...runs.experiment import Figure, Timing, Video
from ...runs.files import RunError
from ..statistics import spread
from . import claims
from .tables import balances_of, place, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["casts", "figures", "merge", "tables", "verdict"]

FEW_LABELS = 6
"""A panel with more methods than this has its legend beside it."""


def verdict(results: Mapping[str, Any]) -> str:
    """The order of the methods, and what it says of the paper's claims."""
    said = []
    for group, beside in claims.beside_affine(results["groups"]):
        methods = group["methods"]
        scores = {label: [run["score"] for run in runs] for label, runs in methods.items()}
        ranked = sorted(scores, key=lambda label: -fmean(scores[label]))
        listed = ", ".join(f"{label} {_with_deviation(scores[label])}" for label in ranked)
        said.append(f"{place(group)}, after {group['generations']} generations: {listed}")
        said += _on_claims(group, beside)
    said += [
        f"Along stoch-ortRNN on {place(group)}, {balance.verdict(sizes)}"
        for group, sizes in balances_of(results["groups"])
    ]
    return f"Mean return of the last policy, ± one deviation over seeds. {'. '.join(said)}."


def _on_claims(group: Mapping[str, Any], methods: claims.Methods) -> list[str]:
    said = []
    if found := claims.best_of_all(methods):
        word, pairs = found
        worst = min(pairs, key=lambda pair: float(pair["mean"]))
        said.append(
            f"That stoch-ortRNN is the best of the paper's methods is {word} here: {_pair(worst)}"
        )
    if group["task"] == "swimmer15" and (failure := claims.fails(methods)):
        word, low, high = failure
        said.append(
            f"That vanRNN does not train on it is {word}: it rises by {low:.0f} to {high:.0f} "
            "above its start"
        )
    said += [
        f"A trained transition is worse than a frozen one: {_pair(pair)}"
        for pair in claims.below_frozen(methods)
    ]
    return said


def _pair(pair: Mapping[str, Any]) -> str:
    return (
        f"{pair['ours']} less {pair['theirs']} is {pair['mean']:+.0f} "
        f"({pair['low']:.0f} to {pair['high']:.0f}, {pair['seeds']} seeds)"
    )


def _with_deviation(scores: Sequence[float]) -> str:
    found = spread(scores)
    return f"{found['mean']:.0f}" + ("" if found["sd"] is None else f" ± {found['sd']:.0f}")


def merge(
    parts: Sequence[tuple[Mapping[str, Any], Timing]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results and clocks of runs of different tasks, sizes or methods as one.

    Cells of two runs that have one name: the second has the number of its run.

    Raises:
        RunError: If two of them hold the same method of a task and size, or such methods under
            different settings.
    """
    merged: dict[str, Any] = {"updates": {}, "batches": {}, "searches": [], "groups": []}
    clocks: dict[str, Any] = {}
    for n, (part, timing) in enumerate(parts, 1):
        renamed = {cell: f"{cell},run={n}" for cell in part["batches"] if cell in merged["batches"]}
        merged["batches"] |= {renamed.get(cell, cell): v for cell, v in part["batches"].items()}
        clocks |= {renamed.get(cell, cell): clock for cell, clock in timing.items()}
        merged["updates"] |= part["updates"]
        merged["searches"] += part["searches"]
        for group in part["groups"]:
            _add(merged["groups"], group)
    return merged, clocks


def _add(groups: list[dict[str, Any]], group: Mapping[str, Any]) -> None:
    """Add the methods of a group to the one of the same task and size, if there is one."""
    own = {key: value for key, value in group.items() if key != "methods"}
    same = [known for known in groups if place(known) == place(group)]
    if not same:
        groups.append({**own, "methods": dict(group["methods"])})
        return
    differ = [key for key in own if own[key] != same[0][key]]
    twice = sorted(set(group["methods"]) & set(same[0]["methods"]))
    if differ or twice:
        what = f"{twice[0]} is in two of them" if twice else f"they differ in {', '.join(differ)}"
        raise RunError(
            "runs of one task and size that are collected must hold different methods, of equal "
            f"generations and horizon: {what} for {place(group)}. Leave one out."
        )
    same[0]["methods"] |= group["methods"]


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """A panel for each task and size: mean and one deviation over seeds, as in Fig. 3. And rho."""
    panels = _panels(results["groups"])
    columns = min(2, len(panels))
    height = -(-len(panels) // columns)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots(height, columns, squeeze=False).ravel()
        colours: dict[str, str] = {}
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, (title, methods) in zip(axes, panels.items(), strict=False):
            for label, runs in methods.items():
                colour = colours.setdefault(label, f"C{len(colours)}")
                at = [fmean(point[1] for point in points) for points in _points(runs)]
                mean, sd = zip(*(_band(points) for points in _points(runs)), strict=True)
                axis.plot(at, mean, color=colour, label=label, linewidth=1.2)
                low = [m - s for m, s in zip(mean, sd, strict=True)]
                high = [m + s for m, s in zip(mean, sd, strict=True)]
                axis.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)
            axis.set(title=title, xlabel="steps of the environment", ylabel="return")
            axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
            axis.legend(fontsize="xx-small" if len(methods) > FEW_LABELS else "small", ncols=2)

    caption = (
        "Return of the unperturbed policy over the steps of the environment in training: mean of "
        "the seeds, and one standard deviation shaded."
    )
    shown = [Figure("curves", caption, draw, (5.0 * columns + 0.6, 3.6 * height + 0.4))]
    for group, sizes in balances_of(results["groups"]):
        runs = group["methods"][claims.OURS]
        curves = {run["cell"]: run["rho"] for run in runs if "rho" in run}  # or never moved
        caption = f"rho along stoch-ortRNN on {place(group)}"
        shown.append(balance.figure(f"rho-{_file(group)}", sizes, curves, caption, "generation"))
    return shown


def _points(runs: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """The points of all seeds at the same generation."""
    return list(zip(*(run["curve"] for run in runs), strict=False))


def _band(points: Sequence[Sequence[float]]) -> tuple[float, float]:
    found = spread([point[2] for point in points])
    return found["mean"] or 0.0, found["sd"] or 0.0


def casts(results: Mapping[str, Any]) -> list[tuple[Video, list[tuple[str, str]]]]:
    """The videos and their labels, and the cells of the best seeds."""
    found: list[tuple[Video, list[tuple[str, str]]]] = []
    together: dict[str, list[tuple[str, str]]] = {}
    for group in results["groups"]:
        cast = []
        for label, runs in group["methods"].items():
            best = max(runs, key=lambda run: float(run["score"]))
            cast.append((label, best["cell"]))
            caption = (
                f"{place(group)}, {label}: an episode of the last policy, of the best of "
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
            caption = f"{place(group)}: the best policy of each method, the same instant of each."
            found.append((Video(f"{_file(group)}-all", caption), cast))
    return found


def _panels(groups: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The methods that are drawn together; an affine policy is drawn with those of every size."""
    plain = {group["task"]: group["methods"] for group in groups if not group["hidden"]}
    sized = {group["task"] for group in groups if group["hidden"]}
    return {
        place(group): {**group["methods"], **(plain.get(group["task"], {}))}
        for group in groups
        if group["hidden"] or group["task"] not in sized
    }


def _file(group: Mapping[str, Any]) -> str:
    return f"{group['task']}-{group['hidden']}" if group["hidden"] else group["task"]
