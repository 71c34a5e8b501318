"""The curves of the finals."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...runs.experiment import Figure
from .report import which_auto

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """A panel for each problem: "auto", our best method, the best rivals; the others are grey."""
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
                style: dict[str, Any] = {"ls": "-" if row["ours"] else "--"}
                if row["method"] in named:
                    style |= {"label": row["method"], "zorder": 3}
                else:
                    style |= {"color": "#8c8c8c", "alpha": 0.5, "lw": 0.8}
                axis.loglog(times, [max(gap, 1e-9) for gap in gaps], **style)
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
