"""Verdict, tables and figures of the learned metrics."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runs.experiment import Table, Timing, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METHODS = {
    "raw": "raw coordinates",
    "pca": "PCA",
    "nca": "NeighborhoodComponentsAnalysis",
    "lmnn": "LMNN (metric-learn)",
    "ours": "MahalanobisMetric (ours)",
}
RIVALS = ("raw", "pca", "nca", "lmnn")


def verdict_of(results: Mapping[str, Any]) -> str:
    """Where our error is not worse than the best rival's by more than one standard error."""
    rows = results["sets"]
    errors = "; ".join(
        f"{row['set']} {fmean(row['errors']['ours']):.2%} against "
        f"{fmean(row['errors'][row['best']]):.2%} ({METHODS[row['best']]})"
        for row in rows
    )
    worse = [row["set"] for row in rows if not row["level"]]
    claim = f"It is worse on {', '.join(worse)}" if worse else "It is worse on none"
    return (
        f"Test error of {results['neighbours']} neighbours under our metric and under the best "
        f"rival's, means over the splits: {errors}. {claim} by more than one standard error of the "
        "difference."
    )


def tables_of(results: Mapping[str, Any], timing: Timing) -> list[Table]:
    """The tables of errors and seconds of every set."""
    rows = results["sets"]
    return [
        Table(
            "errors",
            f"Test errors in percent of a vote of {results['neighbours']} neighbours, means and "
            f"standard errors over the splits: partitions into {results['splits']} disjoint test "
            "sets. Behind: ours minus the best rival's, split by split.",
            (
                "set",
                "splits",
                "points",
                "features",
                "coordinates",
                *METHODS.values(),
                "best rival",
                "behind",
            ),
            tuple(
                (
                    row["set"],
                    len(row["errors"]["ours"]),
                    row["points"],
                    row["features"],
                    row["components"],
                    *(_percent(row["errors"].get(name)) for name in METHODS),
                    METHODS[row["best"]],
                    f"{100 * row['behind']['mean']:+.2f} ± {100 * row['behind']['error']:.2f}",
                )
                for row in rows
            ),
        ),
        Table(
            "seconds",
            "Seconds of processor time of a fit on one thread, medians over the splits."
            + _about_mnist(results, timing),
            ("set", *(METHODS[name] for name in METHODS if name != "raw")),
            tuple(
                (
                    row["set"],
                    *(timing.get(row["set"], {}).get(m) for m in METHODS if m != "raw"),
                )
                for row in rows
            ),
        ),
    ]


def _about_mnist(results: Mapping[str, Any], timing: Timing) -> str:
    mnist = next((row for row in results["sets"] if row["set"] == "mnist"), None)
    if mnist is None:
        return ""
    gigabytes = 8 * mnist["points"] ** 2 / 1e9
    note = (
        f" On MNIST NeighborhoodComponentsAnalysis and LMNN have {results['nca_points']:,} of the "
        f"{mnist['points']:,} points: one matrix of distances would have {gigabytes:.0f} GB."
    )
    if "lmnn" not in mnist["errors"] and any("lmnn" in row["errors"] for row in results["sets"]):
        note += f" LMNN does not finish in {results['limit']:,} s."
    clock = timing.get("mnist", {})
    if {"nca", "ours"} <= set(clock):
        word = "less" if clock["ours"] < clock["nca"] else "more"
        note += (
            f" MahalanobisMetric takes {word} time than NeighborhoodComponentsAnalysis, on all of "
            "them."
        )
    return note


def _percent(errors: Sequence[float] | None) -> Value:
    if errors is None:
        return None
    return f"{100 * fmean(errors):.2f} ± {100 * stdev(errors) / len(errors) ** 0.5:.2f}"


def draw_errors(canvas: "Canvas", results: Mapping[str, Any]) -> None:
    """Draw the errors as bars."""
    axis = canvas.subplots()
    rows = results["sets"]
    places = np.arange(len(rows))
    for n, (name, label) in enumerate(METHODS.items()):
        there = [k for k, row in enumerate(rows) if name in row["errors"]]
        errors = [rows[k]["errors"][name] for k in there]
        means = [100 * fmean(each) for each in errors]
        bars = [100 * stdev(each) / len(each) ** 0.5 for each in errors]
        axis.bar(places[there] + 0.16 * n - 0.32, means, 0.16, yerr=bars, label=label, capsize=2)
    axis.set_xticks(places, [row["set"] for row in rows])
    axis.set_ylabel("test error, percent")
    axis.legend()


def draw_embeddings(canvas: "Canvas", results: Mapping[str, Any]) -> None:
    """Draw test points in two coordinates, by principal components and by the metric."""
    from matplotlib import colormaps

    tab10 = colormaps["tab10"]
    rows = [row for row in results["sets"] if row.get("embedding") is not None]
    axes = canvas.subplots(len(rows), 2, squeeze=False)
    for row, pair in zip(rows, axes, strict=True):
        embedding = row["embedding"]
        classes = np.array(embedding["classes"])
        for name, axis in zip(("pca", "ours"), pair, strict=True):
            places = np.array(embedding[name])
            for number, kind in enumerate(np.unique(classes)):
                x, y = places[classes == kind].T
                axis.plot(x, y, ".", ms=3, color=tab10(number), label=str(kind))
            axis.set(title=f"{row['set']}: {METHODS[name]}", xticks=(), yticks=())
        pair[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7, markerscale=2)
