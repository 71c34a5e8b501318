"""The figure of README.md: four of the races on an H200."""

import json
from pathlib import Path
from typing import Any

RACES = {
    "procrustes": "Procrustes, 2000 x 2000",
    "online-pca-1000": "online PCA, 5000 x 1000",
    "wide-linear": "linear layer, 4096 x 4096",
    "copying": "recurrent net, 256 units",
}
"""Problems of `bench quality`, and the titles of their panels."""
LINES = {
    "skewflow": (("auto", "auto-adam"), "#d6455d"),
    "pogo-torch": (("pogo", "pogo-adam"), "#2f7ed8"),
    "Cayley SGD": (("cayley-sgd",), "#e08214"),
    "landing": (("landing",), "#1b9e77"),
    "geoopt": (("geoopt-sgd", "geoopt-adam"), "#9467bd"),
    "geotorch": (("geotorch-sgd", "geotorch-adam"), "#8c8c8c"),
}
"""The methods of each line, of which the better one is drawn, and the colour of the line."""


def draw(results: Path, out: Path) -> None:
    """Draw the gap against seconds, with a panel for each race."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    summary = json.loads((results / "quality/h200/summary.json").read_text(encoding="utf-8"))
    problems = {problem["name"]: problem for problem in summary["results"]["problems"]}
    size: Any = {"font.size": 11, "axes.titlesize": 12, "legend.fontsize": 11}
    with plt.rc_context(size):
        fig, axes = plt.subplots(2, 2, figsize=(9, 6.2), layout="constrained")
        for axis, (name, title) in zip(axes.flat, RACES.items(), strict=True):
            _panel(axis, problems[name])
            axis.set(title=title)
        for axis in axes[1]:
            axis.set(xlabel="seconds")
        for axis in axes[:, 0]:
            axis.set(ylabel="loss gap")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        out.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(out, dpi=120, metadata={"Software": None})
        plt.close(fig)


def _panel(axis: Any, problem: dict[str, Any]) -> None:
    rows = {row["method"]: row for row in problem["rows"]}
    for label, (methods, colour) in LINES.items():
        ran = [rows[method] for method in methods if rows[method]["points"]]
        if not ran:
            continue
        seconds, _, gaps = zip(*min(ran, key=_final)["points"][1:], strict=True)
        ours = label == "skewflow"
        axis.loglog(
            seconds, gaps, color=colour, label=label, lw=3 if ours else 1.6, zorder=3 if ours else 2
        )
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _final(row: dict[str, Any]) -> float:
    gap: float = row["final_gap"]
    return gap
