"""Recurrent nets with an orthogonal transition on tasks that need a long memory."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, cast, get_args

import torch

from ...data import SOURCES, Digits, default_images
from ...data.sequences import Copying, Order, Pixels
from ...models.recurrent import Learner, Method, is_missing
from ...runs.environment import check_device, device_name
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from ...runs.threads import one_thread
from .report import SOLVED, figures_of, tables_of, verdict_of

SEARCH_SEED = 1000
"""Seed of the trainings that choose the learning rates."""


@dataclass(frozen=True, kw_only=True)
class RnnConfig:
    """Copying symbols over a long delay; digits read pixel by pixel."""

    delays: tuple[int, ...] = (1000, 2000)
    """Numbers T of blanks between the symbols and their copy; without any the task is skipped."""
    iterations: int = 500
    """Number of batches of the copying task; every one is new."""
    orders: tuple[Order, ...] = ("sequential", "permuted")
    """Orders in which pixels are read; without any the task is skipped."""
    epochs: int = 5
    """Passes over the training images."""
    copy_hidden: int = 190
    """Width of the nets that copy."""
    pixel_hidden: int = 170
    """Width of the nets that read pixels."""
    batch: int = 128
    """Sequences in a batch."""
    methods: tuple[Method, ...] = get_args(Method)
    """The ways of training."""
    factors: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    """Factors to search on the default learning rate of each method; a single factor means no
    search."""
    search_iterations: int = 300
    """Batches of a search on the copying task."""
    search_epochs: int = 1
    """Passes of a search on pixels, over nine tenths of the training images."""
    pool: int = 1
    """Side of the squares of pixels that are replaced by their mean."""
    images: int | None = None
    """Number of training images; all when omitted."""
    data: Digits = field(default_factory=default_images)
    """The dataset: "mnist" or "digits"."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    """Device of the training."""
    seed: int = 0
    """Seed of weights, batches and the permutation."""


class Rnn(Experiment[RnnConfig]):
    """One cell for each task and method; all methods see the same batches.

    The cells of a search come first, one for each factor on the method's learning rate.
    """

    name = "rnn"
    title = "Orthogonal recurrent nets: long memory"
    paper = (
        "Not in the paper, whose recurrent policies have orthogonal transitions (Sec. 6.1). These "
        "are the tasks by which such nets are known: Arjovsky, Shah and Bengio 2016; Lezcano-"
        "Casado and Martinez-Rubio 2019 (expRNN)."
    )
    presets: Mapping[str, RnnConfig] = {
        "quick": RnnConfig(
            delays=(20,),
            iterations=400,
            orders=("permuted",),
            epochs=6,
            copy_hidden=96,
            pixel_hidden=64,
            batch=32,
            factors=(1.0,),
            data="digits",
            device="cpu",
        ),
        # The search on pixels is as long as the training: the LSTM's best rate for one epoch lost
        # in the next epoch what it had learnt.
        "cpu": RnnConfig(
            delays=(100, 200),
            epochs=3,
            search_iterations=200,
            search_epochs=3,
            copy_hidden=128,
            pixel_hidden=100,
            batch=32,
            pool=2,
            images=5_000,
            device="cpu",
        ),
        "paper": RnnConfig(),
    }
    preset_help = (
        '"quick" takes about a minute on one core, "cpu" a quarter of an hour; "paper" needs a GPU.'
    )

    def cells(self, config: RnnConfig) -> Sequence[str]:
        """The cells of the search, then one for each task and method."""
        _check(config)
        tasks = [*(f"copying-{T}" for T in config.delays), *config.orders]
        finals = [f"{task}-{method}" for task in tasks for method in config.methods]
        return [*(cell for final in finals for cell in _search_cells(config, final)), *finals]

    @one_thread()
    def run_cell(self, config: RnnConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train, and record the loss, the accuracy and the orthogonality of every round."""
        searching = cell.startswith("search,")
        final, _, factor = cell.removeprefix("search,").partition(",factor=")
        name, _, word = final.rpartition("-")
        method = cast(Method, word)
        if is_missing(method):
            return {"task": name, "method": method, "missing": True}
        device, seed = config.device, SEARCH_SEED if searching else config.seed
        task: Copying | Pixels
        options: dict[str, Any] = {"batch": config.batch, "seed": seed, "device": device}
        if name.startswith("copying"):
            task = Copying(int(name.removeprefix("copying-")), **options)
            hidden = config.copy_hidden
            num_steps = config.search_iterations if searching else config.iterations
        else:
            order = cast(Order, name)
            options |= {"pool": config.pool, "images": config.images, "held_out": searching}
            task = Pixels(config.data, order, **options)
            hidden = config.pixel_hidden
            num_steps = (config.search_epochs if searching else config.epochs) * task.num_batches
        chosen = float(factor) if searching else _chosen(config, final, run)
        learner = Learner(task, method, hidden=hidden, seed=seed, device=device, factor=chosen)
        rows, times = _train(learner, num_steps, cell, run)
        if times:
            run.time(cell, "ms per iteration", 1e3 * median(times))
        return {
            "task": name,
            "method": method,
            "missing": False,
            "device": device_name(device),
            "hidden": hidden,
            "factor": chosen,
            "rate": learner.rate,
            "num_weights": learner.num_weights,
            "num_batches": task.num_batches,
            "baseline": task.baseline if isinstance(task, Copying) else None,
            "rows": rows,
        }

    def summarise(self, config: RnnConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The curves, their final values, and when the copying task was solved."""
        found = []
        search = [
            {
                "task": cell["task"],
                "method": cell["method"],
                "rate": cell["rate"],
                "value": _value(cell),
            }
            for name, cell in cells.items()
            if name.startswith("search,") and not cell["missing"]
        ]
        for name, cell in cells.items():
            if name.startswith("search,"):
                continue
            if cell["missing"]:
                found.append({**cell, "cell": name})
                continue
            rows, baseline = cell["rows"], cell["baseline"]
            errors = [row["error"] for row in rows if row["error"] is not None]
            last: dict[str, Any] = {
                "error": max(errors, default=None),
                "diverged": rows[-1]["loss"] is None,
                "accuracy": rows[-1]["accuracy"],
            }
            if baseline is not None:
                over = [None if r["loss"] is None else r["loss"] / baseline for r in rows]
                pairs = zip(rows, over, strict=True)
                at = [r["step"] for r, v in pairs if v is not None and v < SOLVED]
                last |= {"over_baseline": over[-1], "solved_at": at[0] if at else None}
            found.append({**cell, **last, "cell": name})
        return {
            "data": SOURCES[config.data],
            "pool": config.pool,
            "images": config.images,
            "batch": config.batch,
            "search": search,
            "cells": found,
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Which methods solve the tasks and when, and how orthogonal their transitions are."""
        return verdict_of(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """A table for each kind of task, and one of the search."""
        return tables_of(results, timing)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure with a panel for each task."""
        return figures_of(results)


def _train(
    learner: Learner, num_steps: int, cell: str, run: Run
) -> tuple[list[dict[str, Any]], list[float]]:
    """Train the remaining rounds; returns all rounds, and seconds of an iteration for each."""
    rows: list[dict[str, Any]] = []
    times: list[float] = []
    if (state := run.load(cell)) is not None:
        learner.load_state_dict(state["learner"])
        rows = state["rows"]
    while learner.step < num_steps and not (rows and rows[-1]["loss"] is None):
        size = min(learner.task.num_batches, num_steps - learner.step)
        began = time.perf_counter()
        loss = learner.run(size)
        times.append((time.perf_counter() - began) / size)
        good = loss is not None
        row = {
            "step": learner.step,
            "loss": loss,
            "accuracy": learner.task.accuracy(learner.net) if good else None,
            "error": learner.error() if good else None,
        }
        rows.append(row)
        run.metric(cell, **row)
        run.save(cell, {"learner": learner.state_dict(), "rows": rows})
        run.progress(learner.step / num_steps)
    return rows, times


def _search_cells(config: RnnConfig, final: str) -> list[str]:
    """The cells that choose the learning rate of a final one; none for one factor."""
    many = len(config.factors) > 1
    return [f"search,{final},factor={factor}" for factor in config.factors] if many else []


def _chosen(config: RnnConfig, final: str, run: Run) -> float:
    """The best factor of the search; the first one if several are equal."""
    best, reached = config.factors[0], -math.inf
    for cell in _search_cells(config, final):
        found = run.result(cell)
        assert found is not None  # the cells of the search come first
        value = _value(found)
        if value is not None:
            merit = value if found["baseline"] is None else -value
            if merit > reached:
                best, reached = found["factor"], merit
    return best


def _value(cell: Mapping[str, Any]) -> float | None:
    """The final loss over the baseline, or the accuracy; None if a training diverged."""
    last = cell["rows"][-1]
    if last["loss"] is None or cell["baseline"] is None:
        return last["accuracy"]
    return last["loss"] / cell["baseline"]


def _check(config: RnnConfig) -> None:
    numbers = (
        "iterations", "epochs", "copy_hidden", "pixel_hidden", "batch", "search_iterations",
        "search_epochs", "pool",
    )  # fmt: skip
    sizes = [*((name, getattr(config, name)) for name in numbers)]
    for name, value in [*sizes, *(("delays", delay) for delay in config.delays)]:
        if value < 1:
            raise RunError(f"`{name}` must be at least 1: got {value}.")
    if not config.factors or not all(factor > 0 for factor in config.factors):
        raise RunError(f"`factors` must be positive, at least one: got {config.factors}.")
    if not config.methods or not (config.delays or config.orders):
        raise RunError(
            "one of `methods`, and one of `delays` or `orders`, must be given: got none."
        )
    if config.images is not None and config.images < 2:
        raise RunError(f"`images` must be at least 2: got {config.images}.")
    check_device(config.device)
