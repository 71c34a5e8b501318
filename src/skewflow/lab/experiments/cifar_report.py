"""What is shown of the CIFAR-10 runs."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from ..experiment import Table, Timing

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def table_of_methods(results: Mapping[str, Any], timing: Timing) -> Table:
    """One row for each method."""
    rows = []
    for method, found in results["methods"].items():
        seconds = [
            cell[f"{method} seconds an epoch"]
            for cell in timing.values()
            if f"{method} seconds an epoch" in cell
        ]
        rows.append(
            (
                method,
                found["setting"].removeprefix(method).strip(),
                100 * mean(found["final"]),
                100 * stdev(found["final"]) if len(found["final"]) > 1 else None,
                100 * mean(found["best"]),
                100 * mean(found["train"]),
                found["error"] if found["error"] > 0 else None,
                mean(seconds) if seconds else None,
            )
        )
    return Table(
        "methods",
        f"Accuracy in percent after {results['epochs']} epochs (mean over seeds; best: of any "
        "epoch), with the setting that the search chose; the largest normalised "
        "||W^T W - I|| of any orthogonal weight at the end; seconds of an epoch that a method "
        "trains alone. The paper: vanilla about 66, the rest in a figure only.",
        (
            "method", "chosen", "test", "standard deviation", "best test", "train",
            "orthogonality error", "seconds an epoch",
        ),
        tuple(rows),
    )  # fmt: skip


def verdict_of(results: Mapping[str, Any]) -> str:
    """The differences between the methods, and whether they are the paper's."""
    methods = results["methods"]
    final = {method: 100 * mean(found["final"]) for method, found in methods.items()}
    said = [f"{method} {value:.2f}" for method, value in final.items()]
    text = (
        f"PlainNet-{results['depth']} on {results['data']}, {results['epochs']} epochs, batch "
        f"norms that begin with a bias of {results['shift']:g}, test accuracy in percent: "
        f"{', '.join(said)}."
    )
    if {"vanilla", "s=r", "exact"} <= set(final):
        better = "at least vanilla's" if final["s=r"] >= final["vanilla"] else "below vanilla's"
        gap = final["exact"] - final["s=r"]
        near = "at most 1 point below" if gap <= 1 else "more than 1 point below"
        text += f" s = d / ln d is {better} and {near} the exact method ({-gap:+.2f} points)."
    if {"s=2", "s=r"} <= set(final):
        noisy = "worse" if final["s=2"] < final["s=r"] - 1 else "not worse"
        text += (
            f" s = 2 is {noisy} than that ({final['s=2'] - final['s=r']:+.2f} points), which the "
            "paper found too noisy."
        )
    error = max(found["error"] for found in methods.values())
    return f"{text} The largest orthogonality error at the end is {error:.1e}."


def draw_curves(canvas: "Canvas", results: Mapping[str, Any]) -> None:
    """Test accuracy bold, training accuracy thin, in percent."""
    axis = canvas.subplots()
    for n, (method, found) in enumerate(results["methods"].items()):
        test, train = (_mean_curve(found["curves"], key) for key in ("test", "train"))
        epochs = range(1, len(test) + 1)
        axis.plot(epochs, test, color=f"C{n}", linewidth=2, label=method)
        axis.plot(epochs, train, color=f"C{n}", linewidth=0.8)
    axis.set(xlabel="epoch", ylabel="accuracy in percent")
    axis.legend()


def _mean_curve(curves: Sequence[Sequence[Mapping[str, float]]], key: str) -> list[float]:
    return [100 * mean(row[key] for row in rows) for rows in zip(*curves, strict=True)]
