"""Verdict, tables and figure of the MNIST runs."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ...runs.experiment import Figure, Table, Timing, Value
from ..statistics import beats, compared, percent, points
from .training import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METHODS: dict[Trained, str] = {
    "vanilla": "vanilla SGD, orthogonal start",
    "default": "vanilla SGD, default start",
    "exact": "exact",
    "s=2": "s = 2",
    "s=r": "s = r*",
    "geoopt": "geoopt RiemannianSGD",
}
"""The methods and their names in tables. All but "default" start from the same weights; "default"
has torch's initialisation, as the paper's vanilla network probably had."""
FREE = ("vanilla", "default")
"""Methods without orthogonal weights."""
BAR = 0.3
"""Points of accuracy within which s = 2 counts as competitive with exact."""
ON_MANIFOLD = 1e-4
"""Largest accepted error of orthogonal weights."""


def verdict_of(results: Mapping[str, Any]) -> str:
    """Whether s = 2 keeps up with exact, and whether orthogonal weights beat free ones."""
    methods = results["methods"]
    pairs = methods["s=2"]
    behind = pairs["from_exact"]
    within = "within" if behind["mean"] >= -BAR else "not within"
    errors = {m: row["error"] for m, row in methods.items() if m not in FREE}
    off = [f"{METHODS[m]} ({e:.1e})" for m, e in errors.items() if e > ON_MANIFOLD]
    kept = (
        f"are off the manifold by more than {ON_MANIFOLD:g}: {', '.join(off)}"
        if off
        else f"stay orthogonal to {max(errors.values()):.1e}"
    )
    many = results["num_seeds"]
    missing = results["missing"]
    return (
        f"After {results['epochs']} epochs on {results['images']['final'][0]:,} training "
        f"images of {results['data']}, s = 2 ends at {percent(pairs['final'])} and exact at "
        f"{percent(methods['exact']['final'])}, a "
        f"difference of {points(behind)}: {within} our bar of {BAR:g} points. "
        f"{_against(methods, 'vanilla')} {_against(methods, 'default')} "
        f"These are means of {many} {'seed' if many == 1 else 'seeds'}. Weights {kept}."
        + (f" Not installed, so not run: {', '.join(missing)}." if missing else "")
    )


def tables_of(results: Mapping[str, Any], timing: Timing) -> list[Table]:
    """The tables of accuracies and differences, of the search, and of seconds."""
    methods = results["methods"]
    rows: list[tuple[Value, ...]] = [
        (
            METHODS[name],
            m["lr"],
            m["scale"],
            percent(m["train"]),
            percent(m["final"]),
            percent(m["best"]),
            points(m["from_exact"]) if name != "exact" else None,
            points(m["from_vanilla"]) if name != "vanilla" else None,
            points(m["from_default"]) if name != "default" else None,
            m["error"],
            m["stopped"],
        )
        for name, m in methods.items()
    ]
    train, test = results["images"]["final"]
    part, validation = results["images"]["search"]
    accuracy = Table(
        "accuracy",
        f"{results['data']}: {train:,} images to train on, {test:,} to test on; two hidden "
        f"layers of {results['width']}, tanh, orthogonal weights in "
        f"{'both' if results['layers'] == 'both' else 'the second'}, batches of "
        f"{results['batch']}, {results['epochs']} epochs, {results['num_seeds']} seeds. "
        "Accuracies in per cent, mean ± standard deviation over the seeds; training accuracy "
        "is that of the batches of the last epoch; the best epoch is chosen on the test "
        "images. Differences in points, mean ± standard error: a seed gives all methods the "
        "same batches, and all but the default start the same weights. The error is the "
        "largest ||W^T W - I||_F / sqrt(k) after any epoch of any run, search included. The "
        "paper gives no numbers."
        + "".join(f" {name} is not installed." for name in results["missing"]),
        (
            "method",
            "lr",
            "scale of the hidden lr",
            "training",
            "test at the end",
            "test, best epoch",
            "from exact",
            "from vanilla, orthogonal start",
            "from vanilla, default start",
            "error",
            "diverged",
        ),
        tuple(rows),
    )
    search = Table(
        "search",
        f"Accuracy in per cent on {validation:,} validation images after "
        f"{results['search_epochs']} epochs on the other {part:,} training images, one seed, "
        f"for all {results['num_settings']} settings of each method; the best one is used "
        "above. The scale is on the learning rate of the weights that orthogonal methods keep "
        "orthogonal, for vanilla SGD too.",
        ("lr", "scale", *(METHODS[name] for name in methods)),
        tuple(
            (at[0]["lr"], at[0]["scale"], *(f"{s['accuracy']:.2f}" for s in at))
            for at in zip(*(m["search"] for m in methods.values()), strict=True)
        ),
    )
    clock = Table(
        "seconds",
        "Seconds of an epoch, training and measuring: median over the epochs, then over the "
        "seeds. On a CPU one thread works.",
        ("method", "seconds"),
        tuple((METHODS[name], _seconds(timing, m["cells"])) for name, m in methods.items()),
    )
    return [accuracy, search, clock]


def figures_of(results: Mapping[str, Any]) -> list[Figure]:
    """The figure of training and test accuracy, side by side."""

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots(1, 2)
        panels = (("train", "training accuracy"), ("measured", "test accuracy"))
        for axis, (key, label) in zip(axes, panels, strict=True):
            for name, m in results["methods"].items():
                mean = [at["mean"] for at in m["curves"][key]]
                sd = [at["sd"] or 0.0 for at in m["curves"][key]]
                epochs = range(1, len(mean) + 1)
                shown = METHODS[name] if key == "train" else None
                (line,) = axis.plot(epochs, mean, label=shown)
                low = [a - b for a, b in zip(mean, sd, strict=True)]
                high = [a + b for a, b in zip(mean, sd, strict=True)]
                axis.fill_between(epochs, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            axis.set(xlabel="epoch", ylabel=f"{label}, %")
            axis.xaxis.get_major_locator().set_params(integer=True)
        canvas.legend(loc="outside lower center", ncols=len(results["methods"]))

    caption = (
        f"Accuracy on {results['data']} with the learning rates of the search, mean and one "
        f"standard deviation over {results['num_seeds']} seeds. Training accuracy is that of "
        "the epoch's batches as they came."
    )
    return [Figure("mnist", caption, draw, (9.0, 4.2))]


def _against(methods: Mapping[str, Any], free: Trained) -> str:
    """A sentence on the claim that exact and s = 2 outperform vanilla training."""
    claimed: tuple[Trained, ...] = ("exact", "s=2", "s=r")
    diffs = {m: methods[m][f"from_{free}"] for m in claimed}
    said = "; ".join(f"{METHODS[m]} {compared(diff)}" for m, diff in diffs.items())
    won = [METHODS[m] for m in claimed[:2] if beats(diffs[m])]
    holds = {0: "fails", 1: f"holds for {''.join(won)} alone", 2: "holds"}[len(won)]
    return (
        f"Against {METHODS[free]}, at {percent(methods[free]['final'])}: {said}; so the paper's "
        f"claim that exact and s = 2 outperform vanilla training {holds}."
    )


def _seconds(timing: Timing, cells: Sequence[str]) -> float | None:
    found = [t for c in cells if (t := timing.get(c, {}).get("seconds per epoch")) is not None]
    return median(found) if found else None
