"""Metric learning: nearest neighbours under our metric and under those of others (Sec. 1)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from skewflow.problems import MahalanobisMetric

from ...data import Digits, default_images
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.run import Run
from ...runs.seeds import spawn
from ...runs.threads import one_thread
from ..statistics import difference
from .report import METHODS, RIVALS, draw_embeddings, draw_errors, tables_of, verdict_of
from .rivals import LMNN, UnfinishedError, has_lmnn
from .splits import Split, splits

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

COMPONENTS = {"wine": 8, "breast-cancer": 10, "digits": 32, "mnist": 40}
"""Number of coordinates that every method but the raw one keeps."""

DRAWN_POINTS = 600
"""Most test points of an embedding that is drawn."""


@dataclass(frozen=True, kw_only=True)
class MetricLearningConfig:
    """Data sets with classes, and their splits."""

    data: Digits = field(default_factory=default_images)
    """"mnist" adds MNIST to the sets of scikit-learn; "digits" does not."""
    sets: tuple[str, ...] = ("wine", "breast-cancer", "digits")
    """Sets of scikit-learn."""
    splits: int = 5
    """Number of parts of a set; each is the test set once."""
    repeats: int = 4
    """Number of partitions of a set of scikit-learn, whose test sets are small."""
    neighbours: int = 3
    """Number of neighbours that vote."""
    steps: int = 200
    """Number of batches for MahalanobisMetric."""
    scored: int = 2000
    """Number of test images of a split of MNIST; the test sets are disjoint."""
    nca_points: int = 4000
    """Number of images of a split of MNIST for scikit-learn's NCA and metric-learn's LMNN, which
    need memory and time quadratic in this number."""
    limit: int = 600
    """Limit of processor time of a fit of LMNN, in seconds."""
    drawn: tuple[str, ...] = ("digits", "mnist")
    """Sets of which embeddings in two coordinates are drawn."""
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
    preset_help = '"quick" takes seconds, "paper" twenty minutes, half of them for LMNN on MNIST.'
    presets: Mapping[str, MetricLearningConfig] = {
        "ci": MetricLearningConfig(data="digits", sets=("wine",), splits=2, repeats=1, steps=20),
        "quick": MetricLearningConfig(data="digits", repeats=1, steps=100),
        "paper": MetricLearningConfig(),
    }

    def environment(self, config: MetricLearningConfig) -> dict[str, str]:
        """The rivals' versions."""
        from importlib.metadata import version

        return {
            "scikit-learn": version("scikit-learn"),
            "metric-learn": version("metric-learn") if has_lmnn() else "not installed",
        }

    def cells(self, config: MetricLearningConfig) -> Sequence[str]:
        """The sets."""
        return [*config.sets, *(["mnist"] if config.data == "mnist" else [])]

    @one_thread()
    def run_cell(self, config: MetricLearningConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train every method on every split; only the fits are timed."""
        from sklearn.neighbors import KNeighborsClassifier

        errors: dict[str, list[float]] = {
            name: [] for name in METHODS if name != "lmnn" or has_lmnn()
        }
        seconds: dict[str, list[float]] = {name: [] for name in errors}
        seed = int(spawn(config.seed, cell).initial_seed() % 2**31)
        embedding = None
        each = splits(cell, config.splits, config.repeats, config.scored, seed)
        for number, (X, y, points, classes) in enumerate(each):
            if number == 0 and cell in config.drawn:
                embedding = _embedding((X, y, points, classes), config.steps, seed)
            for name in list(errors):
                few = name in ("nca", "lmnn") and cell == "mnist"
                part = slice(config.nca_points if few else None)
                model = _model(name, COMPONENTS[cell], config, seed)
                began = time.process_time()
                try:
                    model.fit(X[part], y[part])
                except UnfinishedError:
                    del errors[name], seconds[name]
                    continue
                spent = time.process_time() - began
                seconds[name].append(model.seconds if name == "lmnn" else spent)
                vote = KNeighborsClassifier(config.neighbours, algorithm="brute")
                vote.fit(model.transform(X), y)
                errors[name].append(1 - float(vote.score(model.transform(points), classes)))
            parts = config.splits * (1 if cell == "mnist" else config.repeats)
            run.progress((number + 1) / parts)
        for name, spent_on in seconds.items():
            run.time(cell, name, median(spent_on))
        return {
            "points": len(X),
            "tested": len(points),
            "features": X.shape[1],
            "components": COMPONENTS[cell],
            "errors": errors,
            "embedding": embedding,
        }

    def summarise(
        self, config: MetricLearningConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Means and standard errors, and our difference from the best rival's."""
        sets = []
        for name, cell in cells.items():
            errors = cell["errors"]
            best = min((r for r in RIVALS if r in errors), key=lambda rival: fmean(errors[rival]))
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
            "limit": config.limit,
            "sets": sets,
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Where our error is not worse than the best rival's by more than one standard error."""
        return verdict_of(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of errors and seconds of every set."""
        return tables_of(results, timing)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figures of the embeddings, and of the errors as bars."""

        def errors(canvas: "Canvas") -> None:
            draw_errors(canvas, results)

        def embeddings(canvas: "Canvas") -> None:
            draw_embeddings(canvas, results)

        caption = "Test errors of the vote in the coordinates of every method, standard errors."
        found = [Figure("metric-learning", caption, errors, (7.2, 4.4))]
        drawn = sum(row.get("embedding") is not None for row in results["sets"])
        if drawn:
            caption = (
                "Test points of the first split in two coordinates, coloured by class: the "
                "principal components on the left, the metric learned from the training points on "
                "the right."
            )
            found.insert(0, Figure("embeddings", caption, embeddings, (7.2, 3.4 * drawn)))
        return found


def _model(name: str, components: int, config: MetricLearningConfig, seed: int) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.neighbors import NeighborhoodComponentsAnalysis
    from sklearn.preprocessing import FunctionTransformer

    if name == "raw":
        return FunctionTransformer()
    if name == "pca":
        return PCA(components, random_state=seed)
    if name == "nca":
        return NeighborhoodComponentsAnalysis(components, random_state=seed)
    if name == "lmnn":
        return LMNN(components, seed, config.limit)
    return MahalanobisMetric(components, steps=config.steps, random_state=seed)


def _embedding(split: Split, steps: int, seed: int) -> dict[str, Any]:
    """Some test points in two coordinates, before and after learning."""
    from sklearn.decomposition import PCA

    X, y, points, classes = split
    models = {
        "pca": PCA(2, random_state=seed),
        "ours": MahalanobisMetric(2, steps=steps, random_state=seed),
    }
    found: dict[str, Any] = {"classes": classes[:DRAWN_POINTS].tolist()}
    for name, model in models.items():
        places = model.fit(X, y).transform(points[:DRAWN_POINTS])
        found[name] = [[float(f"{v:.4g}") for v in row] for row in places]
    return found
