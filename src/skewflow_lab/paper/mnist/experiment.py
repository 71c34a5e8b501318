"""Orthogonal training of a small network on MNIST (Sec. 6.2, Fig. 4)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any, Literal, get_args

from ...data import SOURCES, Digits, default_images
from ...runs.environment import check_device
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from ...runs.threads import one_thread
from ..statistics import difference, spread
from .report import METHODS, figures_of, tables_of, verdict_of
from .training import Layers, Trained, Training, load_split

SEARCH_SEED = 1000
"""Seed of the trainings that choose the learning rates."""


@dataclass(frozen=True, kw_only=True)
class MnistConfig:
    """Training with momentum 0.9; the learning rates fall tenfold at 3/9, 6/9 and 8/9 of it."""

    width: int = 100
    """Units of each of the two hidden layers."""
    layers: Layers = "second"
    """Hidden layers whose weights are kept orthogonal: the square "second" one, which the paper's
    Table 1 counts for MNIST (d = 100), or "both"."""
    lrs: tuple[float, ...] = (0.05, 0.1, 0.5)
    """Learning rates to search, those of the paper."""
    scales: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    """Factors to search on the learning rate of those hidden weights: those of the paper, and 0.01,
    because s = 2 chose the smallest of the paper's."""
    batch: int = 128
    """Images in a batch, as in the paper's baseline."""
    epochs: int = 27
    """Passes over the training images in a reported training."""
    search_epochs: int = 9
    """Passes in a training of the search; the learning rates fall in it, too."""
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
        """The cells of the search of every method, then those of its trainings."""
        _check(config)
        methods = _methods()
        search = [c for method in methods for c in _search_cells(config, method)]
        return [*search, *(f"{m},seed={seed}" for m in methods for seed in config.seeds)]

    @one_thread()
    def run_cell(self, config: MnistConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train a setting on a part of the training images, or the best one on all of them."""
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
        """For each method the best setting, accuracies over the seeds, differences, errors."""
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
        return verdict_of(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of accuracies and differences, of the search, and of seconds."""
        return tables_of(results, timing)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of training and test accuracy, side by side."""
        return figures_of(results)


def _methods() -> list[Trained]:
    """The methods whose packages are installed."""
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
    """The setting with the highest accuracy; the first one if several are equal."""
    alive = [result for result in search.values() if not result["stopped"]]
    if not alive:
        raise RunError(
            f"every setting diverged: {', '.join(search)}. Give smaller ones to --lrs or --scales."
        )
    return max(alive, key=lambda result: result["rows"][-1]["measured"])


def _columns(runs: Sequence[dict[str, Any]], key: str) -> list[list[float]]:
    return [[row[key] for row in run["rows"]] for run in runs]
