"""Differential equations whose weight flows on O(d), beside free ones and residual nets."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, cast, get_args

import torch

from skewflow.nn import OrthogonalODE

from ...data import SOURCES, Digits
from ...measure.memory import peak_bytes
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from ...runs.seeds import spawn
from ...runs.threads import one_thread
from ..statistics import spread
from .models import ORTHOGONAL, Method
from .report import figures_of, tables_of, verdict_of
from .training import Data, Task, Training, seeded

SAVES = 10
"""Parts of a training; after each its state is saved."""


@dataclass(frozen=True, kw_only=True)
class OdeConfig:
    """A classifier of images, and one that reads them pixel by pixel."""

    hidden: int = 32
    """Entries of the state x; W is (hidden, hidden)."""
    num_steps: int = 20
    """Steps of the equations on whole images, and blocks of the residual net."""
    time: float = 5.0
    """T on whole images."""
    pixel_time: float = 20.0
    """T of the whole sequence of pixels; each pixel takes a step."""
    iterations: int = 600
    """Steps of a training on whole images."""
    pixel_iterations: int = 200
    """Steps of a training on pixels."""
    batch: int = 128
    """Images in a step."""
    rates: tuple[float, ...] = (3e-3, 1e-2)
    """Learning rates; each method is shown at the one with the least loss in training."""
    depths: tuple[int, ...] = (1, 3, 10, 30, 100, 300)
    """Steps of untrained flows through which gradients are measured."""
    memory_steps: tuple[int, ...] = (10, 1000)
    """Numbers of steps at which the memory of a gradient is measured."""
    pool: int = 2
    """Side of the squares of pixels that are replaced by their mean."""
    methods: tuple[Method, ...] = get_args(Method)
    """Those that are compared."""
    data: Digits = "mnist"
    """"mnist" or "digits"."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One training of each method, rate and task each."""


class Ode(Experiment[OdeConfig]):
    """A cell for each training, and for gradients and memory of untrained flows."""

    name = "ode"
    title = "Neural differential equations on O(d)"
    paper = (
        "Neural equations on compact manifolds are named as a use of flows on O(d) (Sec. 9.9); the "
        "paper trains none. Choromanski et al., NeurIPS 2020, let the weight of a neural equation "
        "flow on O(d), so that gradients neither vanish nor explode."
    )
    presets: Mapping[str, OdeConfig] = {
        "ci": OdeConfig(
            hidden=6,
            num_steps=4,
            iterations=20,
            pixel_iterations=3,
            rates=(1e-2,),
            depths=(1, 8),
            memory_steps=(2, 6),
            pool=4,
            data="digits",
            seeds=(0, 1),
        ),
        "quick": OdeConfig(
            hidden=16,
            num_steps=10,
            iterations=150,
            pixel_iterations=60,
            rates=(1e-2,),
            depths=(1, 10, 30),
            memory_steps=(10, 100),
            data="digits",
            seeds=(0,),
        ),
        "paper": OdeConfig(),
    }
    preset_help = '"ci" takes seconds, "quick" a minute, "paper" half an hour on one core.'
    parts = frozenset({"methods", "seeds"})
    independent = True

    def cells(self, config: OdeConfig) -> Sequence[str]:
        """Memory and gradients of untrained flows first; then the trainings, seed by seed."""
        _check(config)
        trained = [
            f"{task},{method},rate={rate},seed={seed}"
            for seed in config.seeds
            for task in get_args(Task)
            for method in config.methods
            for rate in config.rates
        ]
        return [
            *(f"memory,{method}" for method in config.methods if method in ORTHOGONAL),
            *(f"depth,{method},seed={seed}" for seed in config.seeds for method in config.methods),
            *trained,
        ]

    @one_thread()
    def run_cell(self, config: OdeConfig, cell: str, run: Run) -> dict[str, Any]:
        """One measurement, or one training."""
        kind, word, *rest = cell.split(",")
        method = cast(Method, word)
        if kind == "memory":
            return _memory(config, method)
        seed = int(rest[-1].removeprefix("seed="))
        if kind == "depth":
            deepest = max(config.depths)
            longer = config.time / config.num_steps * deepest
            net = _training(config, "images", method, config.rates[0], seed, deepest, longer)
            return {"norms": net.gradient_norms(config.depths)}
        task, rate = cast(Task, kind), float(rest[0].removeprefix("rate="))
        training = _training(config, task, method, rate, seed)
        rows: list[dict[str, Any]] = []
        if (state := run.load(cell)) is not None:
            training.load_state_dict(state["training"])
            rows = state["rows"]
        part = max(1, training.iterations // SAVES)
        while training.step < training.iterations:
            began = time.perf_counter()
            size = min(part, training.iterations - training.step)
            loss = training.run(size)
            run.time(cell, "ms per step", 1e3 * (time.perf_counter() - began) / size)
            rows.append({"step": training.step, "loss": loss})
            run.metric(cell, **rows[-1])
            run.save(cell, {"training": training.state_dict(), "rows": rows})
            run.progress(training.step / training.iterations)
        steps = tuple(range(1, config.num_steps + 1)) if task == "images" else ()
        return {
            "rate": rate,
            "rows": rows,
            "accuracy": training.accuracy(),
            "parameters": sum(p.numel() for p in training.net.parameters()),
            "error": training.error(),
            "norms": training.gradient_norms(steps),
        }

    def summarise(self, config: OdeConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """For each task and method the mean and spread over the seeds, at its best rate."""
        tasks: dict[str, Any] = {}
        for task in get_args(Task):
            tasks[task] = {}
            for method in config.methods:
                names = {
                    rate: [f"{task},{method},rate={rate},seed={seed}" for seed in config.seeds]
                    for rate in config.rates
                }
                losses = {
                    rate: fmean(cells[name]["rows"][-1]["loss"] for name in names[rate])
                    for rate in config.rates
                }
                best = min(config.rates, key=losses.__getitem__)
                runs = [cells[name] for name in names[best]]
                errors = [run["error"] for run in runs]
                tasks[task][method] = {
                    "rate": best,
                    "losses": [losses[rate] for rate in config.rates],
                    "accuracy": spread([100 * run["accuracy"] for run in runs]),
                    "parameters": runs[0]["parameters"],
                    "error": None if None in errors else max(errors),
                    "norms": [
                        fmean(each) for each in zip(*(run["norms"] for run in runs), strict=True)
                    ],
                    "cells": names[best],
                }
        depth = {
            method: [
                fmean(each)
                for each in zip(
                    *(cells[f"depth,{method},seed={seed}"]["norms"] for seed in config.seeds),
                    strict=True,
                )
            ]
            for method in config.methods
        }
        return {
            "data": SOURCES[config.data].partition(",")[0],
            "num_seeds": len(config.seeds),
            "rates": list(config.rates),
            "depths": list(config.depths),
            "memory_steps": list(config.memory_steps),
            "tasks": tasks,
            "depth": depth,
            "memory": {m: cells[f"memory,{m}"] for m in config.methods if m in ORTHOGONAL},
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Accuracies, how far gradients reach, and what the adjoint needs."""
        return verdict_of(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """Accuracies, gradients and memory."""
        return tables_of(results, timing)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """Gradient norms over the depth, before and after training."""
        return figures_of(results)


def _training(
    config: OdeConfig,
    task: Task,
    method: Method,
    rate: float,
    seed: int,
    num_steps: int | None = None,
    end: float | None = None,
) -> Training:
    """A training of a task; with another number of steps to another time, if they are given."""
    data = Data(task, config.data, config.pool)
    pixels = task == "pixels"
    return Training(
        data,
        method,
        hidden=config.hidden,
        num_steps=num_steps or (1 if pixels else config.num_steps),
        time=end or (config.pixel_time / data.length if pixels else config.time),
        lr=rate,
        batch=config.batch,
        iterations=config.pixel_iterations if pixels else config.iterations,
        seed=seed,
    )


def _memory(config: OdeConfig, method: Method) -> dict[str, list[int]]:
    """Peak bytes of a forward and a backward pass, for each number of steps."""
    with seeded(0, "memory"):
        layer = OrthogonalODE(config.hidden, method=method)  # type: ignore[arg-type]
        x = torch.randn(config.batch, config.hidden, generator=spawn(0, "x")).requires_grad_()
        inputs = [x, *layer.parameters()]

        def peak(gradient: Literal["adjoint", "autograd"], num_steps: int) -> int:
            layer.gradient, layer.num_steps = gradient, num_steps
            return peak_bytes(lambda: torch.autograd.grad(layer(x).sum(), inputs))

        return {
            "adjoint": [peak("adjoint", n) for n in config.memory_steps],
            "autograd": [peak("autograd", n) for n in config.memory_steps],
        }


def _check(config: OdeConfig) -> None:
    for name in ("num_steps", "iterations", "pixel_iterations", "batch", "pool"):
        if getattr(config, name) < 1:
            raise RunError(f"`{name}` must be at least 1: got {getattr(config, name)}.")
    if config.hidden < 2:
        raise RunError(f"`hidden` must be at least 2, so that W can turn: got {config.hidden}.")
    for name in ("time", "pixel_time", "rates", "depths", "memory_steps"):
        value = getattr(config, name)
        values = value if isinstance(value, tuple) else (value,)
        if not values or min(values) <= 0:
            raise RunError(f"`{name}` must be positive, at least one: got {value}.")
    for name in ("seeds", "methods"):
        if not getattr(config, name):
            raise RunError(f"`{name}` must hold at least one value: got none.")
