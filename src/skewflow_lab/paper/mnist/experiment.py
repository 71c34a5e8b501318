"""Orthogonal training of a small network on MNIST (Sec. 6.2, Fig. 4)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, get_args

from ...data import SOURCES, Digits, default_images
from ...runs.environment import check_device
from ...runs.experiment import Experiment, Figure, Table, Timing, Value
from ...runs.files import RunError
from ...runs.run import Run
from ...runs.threads import one_thread
from ..statistics import beats, compared, difference, percent, points, spread
from .training import Layers, Trained, Training, load_split

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
"""The methods and their names in tables. All but "default" start from the same weights; that one
has torch's initialisation, which the paper's vanilla network had as far as one can tell."""
FREE = ("vanilla", "default")
"""Methods without orthogonal weights."""
SEARCH_SEED = 1000
"""Seed of the trainings that choose the learning rates."""
BAR = 0.3
"""Points of accuracy within which s = 2 counts as competitive with exact."""
ON_MANIFOLD = 1e-4
"""Largest accepted error of orthogonal weights."""


@dataclass(frozen=True, kw_only=True)
class MnistConfig:
    """Training with momentum 0.9; the learning rates fall tenfold at 3/9, 6/9 and 8/9 of it."""

    width: int = 100
    """Units of each of the two hidden layers."""
    layers: Layers = "second"
    """Hidden layers whose weights are kept orthogonal: the square "second" one, which is what the
    paper's Table 1 counts for MNIST (d = 100), or "both"."""
    lrs: tuple[float, ...] = (0.05, 0.1, 0.5)
    """Learning rates to choose from, the paper's."""
    scales: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    """Factors on the learning rate of those hidden weights to choose from: the paper's, and 0.01,
    since s = 2 chose the smallest of the paper's."""
    batch: int = 128
    """Images in a step, as in the paper's baseline."""
    epochs: int = 27
    """Passes over the training images in a reported training."""
    search_epochs: int = 9
    """Passes in a training that only chooses the learning rates; the rates fall in it, too."""
    num_images: int = 60_000
    """Largest number of training images."""
    data: Digits = "mnist"
    """The dataset: "mnist" or "digits"."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the images and the network."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds; every method trains once with each."""


class Mnist(Experiment[MnistConfig]):
    """A cell for each setting of the search, then one for each method and seed."""

    name = "mnist"
    title = "MNIST: a small network with orthogonal layers"
    paper = (
        "For a 2-layer MLP of width 100 with tanh, the stochastic optimiser at s = 2 is "
        "competitive with the exact orthogonal one and outperforms vanilla SGD with momentum "
        "(Sec. 6.2, Fig. 4: curves only, which our source of the paper lacks)."
    )
    presets: Mapping[str, MnistConfig] = {
        "quick": MnistConfig(
            lrs=(0.1,),
            scales=(0.1, 1.0),
            epochs=3,
            search_epochs=1,
            num_images=3000,
            data=default_images(),
            seeds=(0, 1),
        ),
        "paper": MnistConfig(),
    }
    preset_help = '"quick" takes seconds, "paper" about 45 minutes on one core.'

    def cells(self, config: MnistConfig) -> Sequence[str]:
        """The search of every method, then its trainings."""
        _check(config)
        methods = _methods()
        search = [c for method in methods for c in _search_cells(config, method)]
        return [*search, *(f"{m},seed={seed}" for m in methods for seed in config.seeds)]

    @one_thread()
    def run_cell(self, config: MnistConfig, cell: str, run: Run) -> dict[str, Any]:
        """One training: a setting's on part of the training images, or the chosen one on all."""
        searching = cell.startswith("search,")
        _, method, *setting = cell.split(",") if searching else ("", *cell.split(","))
        if searching:
            lr, scale = (float(word.partition("=")[2]) for word in setting)
            seed, epochs = SEARCH_SEED, config.search_epochs
        else:
            found = {c: run.result(c) for c in _search_cells(config, method)}
            best = _chosen({c: result for c, result in found.items() if result is not None})
            lr, scale = best["lr"], best["scale"]
            seed, epochs = int(setting[0].removeprefix("seed=")), config.epochs
        kind: Literal["validation", "test"] = "validation" if searching else "test"
        split = load_split(config.data, kind, config.num_images, config.device)
        training = Training(
            split,
            method,  # type: ignore[arg-type] # a word of the cell's name
            width=config.width,
            layers=config.layers,
            lr=lr,
            scale=scale,
            batch=config.batch,
            epochs=epochs,
            seed=seed,
        )
        if (state := run.load(cell)) is not None:
            training.load_state_dict(state)
        while not training.done:
            row = training.epoch()
            run.metric(cell, **row)
            run.save(cell, training.state_dict())
            run.progress(row["epoch"] / epochs)
        run.time(cell, "seconds per epoch", median(training.seconds))
        return {
            "lr": lr,
            "scale": scale,
            "stopped": training.stopped,
            "images": [len(split.train[1]), len(split.measured[1])],
            "rows": training.rows,
        }

    def summarise(self, config: MnistConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """For each method the chosen setting, accuracies over the seeds, differences, errors."""
        finals = {
            method: [cells[f"{method},seed={seed}"] for seed in config.seeds]
            for method in METHODS
            if f"{method},seed={config.seeds[0]}" in cells
        }
        ends = {m: [run["rows"][-1]["measured"] for run in runs] for m, runs in finals.items()}
        methods = {}
        for method, runs in finals.items():
            search = {c: cells[c] for c in _search_cells(config, method)}
            everything = [*search.values(), *runs]
            methods[method] = {
                "lr": runs[0]["lr"],
                "scale": runs[0]["scale"],
                "search": [
                    {
                        "lr": run["lr"],
                        "scale": run["scale"],
                        "accuracy": run["rows"][-1]["measured"],
                        "stopped": run["stopped"],
                    }
                    for run in search.values()
                ],
                "stopped": sum(run["stopped"] for run in runs),
                "train": spread([run["rows"][-1]["train"] for run in runs]),
                "final": spread(ends[method]),
                "best": spread([max(row["measured"] for row in r["rows"]) for r in runs]),
                "from_exact": difference(ends[method], ends["exact"]),
                "from_vanilla": difference(ends[method], ends["vanilla"]),
                "from_default": difference(ends[method], ends["default"]),
                "error": max(row["error"] for run in everything for row in run["rows"]),
                "curves": {
                    key: [spread(at) for at in zip(*_columns(runs, key), strict=True)]
                    for key in ("train", "measured")
                },
                "cells": [f"{method},seed={seed}" for seed in config.seeds],
            }
        first = next(iter(methods.values()))["search"]
        return {
            "data": SOURCES[config.data].partition(",")[0],
            "layers": config.layers,
            "width": config.width,
            "batch": config.batch,
            "epochs": config.epochs,
            "search_epochs": config.search_epochs,
            "num_settings": len(first),
            "num_seeds": len(config.seeds),
            "images": {
                "search": cells[_search_cells(config, "exact")[0]]["images"],
                "final": finals["exact"][0]["images"],
            },
            "methods": methods,
            "missing": [METHODS[m] for m in METHODS if m not in methods],
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
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

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """Accuracies and differences, the search, and what an epoch takes."""
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

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """Training and test accuracy side by side."""

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
                    axis.fill_between(
                        epochs, low, high, color=line.get_color(), alpha=0.2, linewidth=0
                    )
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
    """What the numbers say of the claim that exact and s = 2 outperform vanilla training."""
    claimed: tuple[Trained, ...] = ("exact", "s=2", "s=r")
    diffs = {m: methods[m][f"from_{free}"] for m in claimed}
    said = "; ".join(f"{METHODS[m]} {compared(diff)}" for m, diff in diffs.items())
    won = [METHODS[m] for m in claimed[:2] if beats(diffs[m])]
    holds = {0: "fails", 1: f"holds for {''.join(won)} alone", 2: "holds"}[len(won)]
    return (
        f"Against {METHODS[free]}, at {percent(methods[free]['final'])}: {said}; so the paper's "
        f"claim that exact and s = 2 outperform vanilla training {holds}."
    )


def _methods() -> list[Trained]:
    """Those that can run here."""
    return [m for m in METHODS if m != "geoopt" or find_spec("geoopt") is not None]


def _search_cells(config: MnistConfig, method: str) -> list[str]:
    return [
        f"search,{method},lr={lr},scale={scale}" for lr in config.lrs for scale in config.scales
    ]


def _check(config: MnistConfig) -> None:
    least = {"width": 1, "batch": 1, "epochs": 1, "search_epochs": 1, "num_images": 2}
    for name, number in least.items():
        if getattr(config, name) < number:
            raise RunError(f"`{name}` must be at least {number}: got {getattr(config, name)}.")
    for name in ("lrs", "scales", "seeds"):
        if not getattr(config, name):
            raise RunError(f"`{name}` must hold at least one value: got none.")
    for name in ("lrs", "scales"):
        if not all(math.isfinite(value) and value > 0 for value in getattr(config, name)):
            raise RunError(f"`{name}` must be positive and finite: got {getattr(config, name)}.")
    if config.layers not in get_args(Layers):
        raise RunError(f"`layers` must be 'both' or 'second': got {config.layers!r}.")
    check_device(config.device)


def _chosen(search: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The setting of the highest accuracy; the first of equal ones."""
    alive = [result for result in search.values() if not result["stopped"]]
    if not alive:
        raise RunError(
            f"every setting diverged: {', '.join(search)}. Give smaller ones to --lrs or --scales."
        )
    return max(alive, key=lambda result: result["rows"][-1]["measured"])


def _columns(runs: Sequence[dict[str, Any]], key: str) -> list[list[float]]:
    return [[row[key] for row in run["rows"]] for run in runs]


def _seconds(timing: Timing, cells: Sequence[str]) -> float | None:
    found = [t for c in cells if (t := timing.get(c, {}).get("seconds per epoch")) is not None]
    return median(found) if found else None
