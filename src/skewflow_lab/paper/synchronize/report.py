"""Verdict, tables and figures of the poses."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...runs.experiment import Table, Timing, Value
from .graphs import unpacked
from .rivals import FROM_OURS, OWN_START, SHONAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def verdict_of(results: Mapping[str, Any]) -> str:
    """The number of certified graphs, and the agreement with printed optima."""
    graphs = results["graphs"]
    proven = [name for name, g in graphs.items() if g["certified"]]
    parts = [
        f"{len(proven)} of {len(graphs)} pose graphs are certified to {results['tol']:.0e}; the "
        f"largest relative gap is {max(g['gap'] for g in graphs.values()):.1e}."
    ]
    if left := [name for name in graphs if name not in proven]:
        gaps = ", ".join(f"{name} (gap {graphs[name]['gap']:.1e})" for name in left)
        parts.append(f"Not certified: {gaps}.")
    printed = {name: g for name, g in graphs.items() if g["optimum"] is not None}
    if printed:
        other = [name for name, g in printed.items() if not agrees(g)]
        text = f"{len(printed) - len(other)} of {len(printed)} printed optima agree to all digits"
        for name in other:
            g = printed[name]
            text += f"; {name} is printed as {g['optimum']}, ours is {g['value']:.5g}, " + (
                f"which poses attain and {g['bound']:.6g} bounds below"
            )
        parts.append(f"{text}.")
    worst = max(abs(g["recomputed"] - g["value"]) / g["value"] for g in graphs.values())
    alone = sum(g["rotations"]["certified"] for g in graphs.values())
    parts.append(
        f"Added up again measurement by measurement, the objectives agree to {worst:.0e}. "
        f"Rotations alone are certified on {alone} of {len(graphs)} graphs."
    )
    return " ".join(parts)


def agrees(graph: Mapping[str, Any]) -> bool:
    """Whether the objective rounds to the printed optimum of four digits."""
    return f"{graph['value']:.3e}" == f"{float(graph['optimum']):.3e}"


def tables_of(results: Mapping[str, Any], timing: Timing) -> list[Table]:
    """The tables of the graphs and of the times."""
    graphs = results["graphs"]
    rows: list[tuple[Value, ...]] = [
        (
            name, g["d"], g["n"], g["m"], g["value"], g["optimum"], g["bound"], g["gap"],
            "yes" if g["certified"] else "no", g["rank"],
        )
        for name, g in graphs.items()
    ]  # fmt: skip
    clocks: list[tuple[Value, ...]] = []
    for name, g in graphs.items():
        clock = timing.get(name, {})
        clocks.append(
            (
                name,
                clock.get("poses"),
                *_rival(clock, FROM_OURS, g["value"]),
                *_rival(clock, OWN_START, g["value"]),
                clock.get("rotations"),
                *_rival(clock, SHONAN, g["rotations"]["value"]),
            )
        )
    return [
        Table(
            "graphs",
            "Our objective, the optimum that SE-Sync's authors print, the proven lower bound and "
            "the relative gap; the rank is the dimension where the relaxation is exact.",
            (
                "graph", "dimension", "poses", "edges", "objective", "SE-Sync", "bound", "gap",
                "certified", "rank",
            ),
            tuple(rows),
        ),
        Table(
            "seconds",
            "Seconds of processor time. Ours begin at the measurements and include the "
            "certificate; GTSAM's begin when its graph is built, and it has no certificate. Its "
            "Levenberg-Marquardt starts at the first step from our chordal start, which is not in "
            "its seconds, or at its own start (LAGO in the plane, chordal in space), which is. "
            "Shonan averages only rotations, and is compared with ours on that problem. `over "
            "ours` is the chordal objective of its result over ours, minus one. A dash: it failed, "
            f"or it took more than {results['limit']:g} s.",
            (
                "graph", "poses, ours", "Levenberg-Marquardt", "over ours", "from its own start",
                "over ours", "rotations, ours", "Shonan", "over ours",
            ),
            tuple(clocks),
        ),
    ]  # fmt: skip


def _rival(clock: Mapping[str, float], method: str, ours: float) -> tuple[Value, Value]:
    """Its seconds, and how far its objective lies above ours."""
    value = clock.get(f"{method} value")
    return clock.get(method), None if value is None else value / ours - 1


def draw_paths(canvas: "Canvas", results: Mapping[str, Any]) -> None:
    """Draw the paths before synchronisation above those after it."""
    drawn = {name: g for name, g in results["graphs"].items() if "before" in g}
    for column, (name, g) in enumerate(drawn.items()):
        for row, key in enumerate(("before", "after")):
            t = unpacked(g[key])
            place = row * len(drawn) + column + 1
            solid = t.shape[1] == 3
            axis: Any = canvas.add_subplot(2, len(drawn), place, projection="3d" if solid else None)
            axis.plot(*t.T, lw=0.35, color=("C3", "C0")[row])
            axis.set_aspect("equal")
            axis.set_axis_off()
            axis.set_title(f"{name}, {key}", fontsize=8)


def draw_gaps(canvas: "Canvas", results: Mapping[str, Any]) -> None:
    """Draw the gap against the number of the check."""
    axis = canvas.subplots()
    for name, g in results["graphs"].items():
        gaps = [(k, (v - b) / g["value"]) for k, (v, b) in enumerate(g["history"]) if v > b]
        if gaps:
            axis.semilogy(*zip(*gaps, strict=True), ".-", lw=0.8, ms=4, label=name)
    axis.axhline(results["tol"], color="0.5", ls=":")
    axis.set(xlabel="check", ylabel="relative gap")
    axis.legend(fontsize=6, ncols=2)
