"""Metric learning: nearest neighbours under our metric and under those of scikit-learn (Sec. 1)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skewflow.problems import MahalanobisMetric

from ..data import Digits, default_images, load_images
from ..runs.experiment import Experiment, Figure, Table, Timing
from ..runs.run import Run
from ..runs.seeds import spawn
from ..runs.threads import one_thread
from .statistics import difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METHODS = {
    "raw": "raw coordinates",
    "pca": "PCA",
    "nca": "NeighborhoodComponentsAnalysis",
    "ours": "MahalanobisMetric (ours)",
}
RIVALS = ("raw", "pca", "nca")
COMPONENTS = {"wine": 8, "breast-cancer": 10, "digits": 32, "mnist": 40}
"""Number of coordinates that every method but the raw one keeps."""
MNIST_TEST = 10_000
"""Number of images of the pool of 70,000 that are not used for training."""

Array = NDArray[Any]
Split = tuple[Array, Array, Array, Array]


@dataclass(frozen=True, kw_only=True)
class MetricLearningConfig:
    """Data sets with classes, and their splits."""

    data: Digits = field(default_factory=default_images)
    """"mnist" adds MNIST to the sets of scikit-learn; "digits" does not."""
    sets: tuple[str, ...] = ("wine", "breast-cancer", "digits")
    """Sets of scikit-learn."""
    splits: int = 5
    """Number of parts of a set; each is the test set once."""
    neighbours: int = 3
    """Number of neighbours that vote."""
    steps: int = 200
    """Number of batches for MahalanobisMetric."""
    scored: int = 2000
    """Number of test images of a split of MNIST; the test sets are disjoint."""
    nca_points: int = 4000
    """Number of images of a split of MNIST for scikit-learn's NCA, which needs memory and time
    quadratic in this number."""
    seed: int = 0
    """Seed of the splits."""


class MetricLearning(Experiment[MetricLearningConfig]):
    """One cell for each set."""

    name = "metric-learning"
    title = "Metric learning: nearest neighbours in learned coordinates"
    paper = (
        "The paper names metric learning among the problems of orthogonal optimisation (Sec. 1), "
        "and gives no numbers."
    )
    presets: Mapping[str, MetricLearningConfig] = {
        "ci": MetricLearningConfig(data="digits", sets=("wine",), splits=2, steps=20),
        "quick": MetricLearningConfig(data="digits", steps=100),
        "paper": MetricLearningConfig(),
    }

    def environment(self, config: MetricLearningConfig) -> dict[str, str]:
        """The rivals' version."""
        from importlib.metadata import version

        return {"scikit-learn": version("scikit-learn")}

    def cells(self, config: MetricLearningConfig) -> Sequence[str]:
        """The sets."""
        return [*config.sets, *(["mnist"] if config.data == "mnist" else [])]

    @one_thread()
    def run_cell(self, config: MetricLearningConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train every method on every split; only the fits are timed."""
        from sklearn.neighbors import KNeighborsClassifier

        errors: dict[str, list[float]] = {name: [] for name in METHODS}
        seconds: dict[str, list[float]] = {name: [] for name in METHODS}
        seed = int(spawn(config.seed, cell).initial_seed() % 2**31)
        for number, (X, y, points, classes) in enumerate(_splits(config, cell, seed)):
            for name in METHODS:
                part = slice(config.nca_points if (name, cell) == ("nca", "mnist") else None)
                began = time.process_time()
                model = _model(name, COMPONENTS[cell], config.steps, seed).fit(X[part], y[part])
                seconds[name].append(time.process_time() - began)
                vote = KNeighborsClassifier(config.neighbours, algorithm="brute")
                vote.fit(model.transform(X), y)
                errors[name].append(1 - float(vote.score(model.transform(points), classes)))
            run.progress((number + 1) / config.splits)
        for name, each in seconds.items():
            run.time(cell, name, median(each))
        return {
            "points": len(X),
            "tested": len(points),
            "features": X.shape[1],
            "components": COMPONENTS[cell],
            "errors": errors,
        }

    def summarise(
        self, config: MetricLearningConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Means and standard errors, and our difference from the best rival's."""
        sets = []
        for name, cell in cells.items():
            errors = cell["errors"]
            best = min(RIVALS, key=lambda rival: fmean(errors[rival]))
            behind = difference(errors["ours"], errors[best])
            sets.append(
                {
                    "set": name,
                    **cell,
                    "best": best,
                    "behind": behind,
                    "level": (behind["mean"] or 0.0) <= (behind["error"] or 0.0),
                }
            )
        return {
            "splits": config.splits,
            "neighbours": config.neighbours,
            "nca_points": config.nca_points,
            "sets": sets,
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
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
            f"rival's, means over {results['splits']} splits: {errors}. {claim} by more than one "
            "standard error of the difference."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of errors and seconds of every set."""
        rows = results["sets"]
        n = results["nca_points"]
        mnist = next((row for row in rows if row["set"] == "mnist"), None)
        note = ""
        if mnist is not None:
            gigabytes = 8 * mnist["points"] ** 2 / 1e9
            note = (
                f" On MNIST NeighborhoodComponentsAnalysis has {n:,} of the {mnist['points']:,} "
                f"points: one of its matrices of distances would have {gigabytes:.0f} GB."
            )
            clock = timing.get("mnist", {})
            if {"nca", "ours"} <= set(clock):
                word = "less" if clock["ours"] < clock["nca"] else "more"
                note += f" MahalanobisMetric takes {word} time on all of them."
        return [
            Table(
                "errors",
                f"Test errors in percent of a vote of {results['neighbours']} neighbours, means "
                f"and standard errors over {results['splits']} splits with disjoint test sets; "
                "behind: ours minus the best rival's, split by split. metric-learn's LMNN is not "
                "among the rivals: it does not work with scikit-learn 1.9.",
                (
                    "set",
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
                        row["points"],
                        row["features"],
                        row["components"],
                        *(_percent(row["errors"][name]) for name in METHODS),
                        METHODS[row["best"]],
                        f"{100 * row['behind']['mean']:+.2f} ± {100 * row['behind']['error']:.2f}",
                    )
                    for row in rows
                ),
            ),
            Table(
                "seconds",
                f"Seconds of processor time of a fit on one thread, medians over the splits.{note}",
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

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of the errors as bars."""

        def draw(canvas: "Canvas") -> None:
            axis = canvas.subplots()
            rows = results["sets"]
            places = np.arange(len(rows))
            for n, (name, label) in enumerate(METHODS.items()):
                errors = [row["errors"][name] for row in rows]
                means = [100 * fmean(each) for each in errors]
                bars = [100 * stdev(each) / len(each) ** 0.5 for each in errors]
                axis.bar(places + 0.2 * n - 0.3, means, 0.2, yerr=bars, label=label, capsize=2)
            axis.set_xticks(places, [row["set"] for row in rows])
            axis.set_ylabel("test error, percent")
            axis.legend()

        caption = "Test errors of the vote in the coordinates of every method, standard errors."
        return [Figure("metric-learning", caption, draw, (7.2, 4.4))]


def _splits(config: MetricLearningConfig, cell: str, seed: int) -> Iterator[Split]:
    """Points and classes to train on and to test on, split by split."""
    from sklearn import datasets
    from sklearn.model_selection import StratifiedKFold

    if cell == "mnist":
        both = [load_images("mnist", "train"), load_images("mnist", "test")]
        X = np.concatenate([images.pixels.flatten(1).numpy() for images in both])
        y = np.concatenate([images.labels.numpy() for images in both])
        order = np.random.default_rng(seed).permutation(len(X))
        for number in range(config.splits):
            first = number * config.scored
            turned = np.roll(order, -first)
            test, train = turned[: config.scored], turned[MNIST_TEST:]
            yield X[train], y[train], X[test], y[test]
        return
    load = {
        "wine": datasets.load_wine,
        "breast-cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
    }[cell]
    X, y = load(return_X_y=True)
    folds = StratifiedKFold(config.splits, shuffle=True, random_state=seed)
    for train, test in folds.split(X, y):
        if cell == "digits":  # all pixels have the same unit
            X_train, X_test = X[train] / 16, X[test] / 16
        else:
            mean, scale = X[train].mean(0), X[train].std(0)
            X_train, X_test = (X[train] - mean) / scale, (X[test] - mean) / scale
        yield X_train, y[train], X_test, y[test]


def _model(name: str, components: int, steps: int, seed: int) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.neighbors import NeighborhoodComponentsAnalysis
    from sklearn.preprocessing import FunctionTransformer

    if name == "raw":
        return FunctionTransformer()
    if name == "pca":
        return PCA(components, random_state=seed)
    if name == "nca":
        return NeighborhoodComponentsAnalysis(components, random_state=seed)
    return MahalanobisMetric(components, steps=steps, random_state=seed)


def _percent(errors: Sequence[float]) -> str:
    return f"{100 * fmean(errors):.2f} ± {100 * stdev(errors) / len(errors) ** 0.5:.2f}"
