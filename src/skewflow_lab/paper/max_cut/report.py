"""Verdict, tables and figures of the cuts."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...runs.experiment import Table, Timing, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PROVEN = 1e-4
"""Largest relative gap of a relaxation that counts as proven."""


def verdict_of(results: Mapping[str, Any]) -> str:
    """The number of proven bounds, the agreement with listed values, the quality of the cuts."""
    graphs = results["graphs"]
    gaps = {name: g["gap"] for name, g in graphs.items()}
    proven = sum(gap <= PROVEN for gap in gaps.values())
    parts = [
        f"{proven} of {len(graphs)} bounds lie within {PROVEN:.0e} of the relaxation found; the "
        f"largest relative gap is {max(gaps.values()):.1e} ({max(gaps, key=lambda k: gaps[k])})."
    ]
    listed = {name: g for name, g in graphs.items() if g["listed"] is not None}
    if listed:
        other = [name for name, g in listed.items() if not agrees(g)]
        text = f"{len(listed) - len(other)} of {len(listed)} listed relaxations agree to all digits"
        for name in other:
            g = listed[name]
            text += f"; {name} is listed as {g['listed']}, ours is {g['relaxation']:.4f}"
            text += f", and its bound {g['bound']:.4f} " + (
                "excludes the listed value" if g["bound"] < float(g["listed"]) else "allows both"
            )
        parts.append(f"{text}.")
    wrong = [name for name, g in graphs.items() if g["cut"] != g["recomputed"]]
    checked = f"cuts of {', '.join(wrong)} do not" if wrong else "every cut does"
    parts.append(f"Added up again edge by edge, {checked} have the weight stated.")
    ratios = {name: g["cut"] / g["best"] for name, g in graphs.items() if g["best"]}
    if ratios:
        worst = min(ratios, key=lambda name: ratios[name])
        parts.append(
            f"The cuts are on average {statistics.mean(ratios.values()):.4f} of the best known, "
            f"the worst {ratios[worst]:.4f} ({worst})."
        )
    return " ".join(parts)


def agrees(graph: Mapping[str, Any]) -> bool:
    """Whether the relaxation rounds to the listed value."""
    _, _, digits = graph["listed"].partition(".")
    # Listed values omit final zeros and may be truncated or rounded to two digits.
    return abs(graph["relaxation"] - float(graph["listed"])) <= 0.5 * 10 ** -max(len(digits), 2)


def tables_of(results: Mapping[str, Any], timing: Timing) -> list[Table]:
    """The tables of the graphs and of the times."""
    graphs = results["graphs"]
    rows: list[tuple[Value, ...]] = []
    for name, g in graphs.items():
        ratio = g["cut"] / g["best"] if g["best"] else None
        rows.append(
            (
                name, g["n"], g["m"], round(g["relaxation"], 4), g["listed"], round(g["bound"], 4),
                g["gap"], g["rank"], g["cut"], g["best"], ratio,
            )
        )  # fmt: skip
    return [
        Table(
            "graphs",
            "The relaxation, its value in the list of others, the proven upper bound and their "
            "relative gap, the rank of the factor, our cut and the best known.",
            (
                "graph", "vertices", "edges", "relaxation", "listed", "bound", "gap", "rank",
                "cut", "best known", "cut / best",
            ),
            tuple(rows),
        ),
        _clocks(graphs, results["patience"], timing),
    ]  # fmt: skip


def _clocks(graphs: Mapping[str, Any], patience: float, timing: Timing) -> Table:
    names = (
        "relaxation",
        "cut",
        "pymanopt",
        "pymanopt gap",
        "pymanopt to 1e-4",
        "pymanopt to 1e-6",
    )
    rows: list[tuple[Value, ...]] = []
    whole, same, late = [], [], 0
    for name in graphs:
        clock = timing.get(name, {})
        ours, theirs, reached = (clock.get(k) for k in ("relaxation", "pymanopt", names[-1]))
        ratio = ours / theirs if ours and theirs else None
        rows.append((name, *(clock.get(k) for k in names), ratio))
        if ours and theirs:
            whole.append(ours / theirs)
            late += clock["pymanopt stopped"] > 0
            # If it does not reach the value in time, its time limit counts.
            same.append(ours / (reached or theirs))
    text = (
        "Seconds of one thread's processor time. Ours includes the certificate to the tolerance, "
        "from the first columns of the start of pymanopt's trust region, which has the rank "
        "ceil(sqrt(2 n)) and runs until its gradient norm is 1e-6, its own rule, or "
        f"{patience:g} times as long as ours, half a second at least. Its gap is to the best value "
        "of both."
    )
    if whole:
        text += (
            f" Ours over pymanopt's, median over {len(whole)} graphs: "
            f"{statistics.median(whole):.2f} of its run, which was stopped on {late} of them, and "
            f"{statistics.median(same):.2f} of its time to a value within 1e-6 of the best, which "
            "it neither knows nor proves."
        )
    columns = ("graph", "ours", "cut", "pymanopt", "its gap", "it to 1e-4", "it to 1e-6", "ratio")
    return Table("seconds", text, columns, tuple(rows))


def draw_vectors(canvas: "Canvas", results: Mapping[str, Any]) -> None:
    """Draw the vectors of some graphs, coloured by side."""
    drawn = {name: g for name, g in results["graphs"].items() if "vectors" in g}
    axes: Sequence[Any] = canvas.subplots(1, len(drawn), squeeze=False)[0]
    for axis, (name, g) in zip(axes, drawn.items(), strict=True):
        for side, colour in ((0, "C0"), (1, "C1")):
            x, y = zip(
                *(v for v, s in zip(g["vectors"], g["side"], strict=True) if s == side), strict=True
            )
            axis.scatter(x, y, s=5, color=colour, alpha=0.6, linewidths=0)
        axis.set(title=f"{name}: {g['cut']:,.10g}", aspect="equal", xlim=(-1.05, 1.05))
        axis.set(ylim=(-1.05, 1.05), xticks=(), yticks=())


def draw_cuts(canvas: "Canvas", results: Mapping[str, Any]) -> None:
    """Draw cuts and relaxations over the best known cuts."""
    graphs = results["graphs"]
    axis = canvas.subplots()
    base = [g["best"] or g["cut"] for g in graphs.values()]
    x = range(len(graphs))
    bounds = [g["bound"] / b for g, b in zip(graphs.values(), base, strict=True)]
    cuts = [g["cut"] / b for g, b in zip(graphs.values(), base, strict=True)]
    axis.plot(x, bounds, "v", ms=4, color="C3", label="proven bound")
    axis.plot(x, cuts, "o", ms=4, color="C0", label="our cut")
    axis.axhline(1.0, color="0.6", lw=0.8, zorder=0, label="best known")
    step = max(1, len(graphs) // 18)
    axis.set_xticks(list(x)[::step], list(graphs)[::step], rotation=60)
    axis.set(ylabel="over the best known cut")
    axis.legend()


def draw_gaps(canvas: "Canvas", results: Mapping[str, Any]) -> None:
    """Draw the gap against the number of the check."""
    axis = canvas.subplots()
    for name, g in results["graphs"].items():
        best = g["relaxation"]
        gaps = [(b - v) / best if b is not None else None for v, b in g["history"]]
        known = [(k, gap) for k, gap in enumerate(gaps) if gap is not None and gap > 0]
        axis.semilogy(*zip(*known, strict=True), "-", lw=0.8, alpha=0.5, label=name)
        axis.plot(*known[-1], ".", color="0.3", ms=4)
    axis.axhline(results["tol"], color="0.5", ls=":")
    axis.set(xlabel="check", ylabel="relative gap")
