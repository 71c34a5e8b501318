"""Recurrent nets with an orthogonal transition on tasks that need a long memory."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch

from ..data import SOURCES, Digits, default_images
from ..environment import check_device, device_name
from ..experiment import Experiment, Figure, Table, Timing, Value
from ..files import RunError
from ..recurrent import CHOICE, Learner, Method, is_missing
from ..run import Run
from ..sequences import Copying, Order, Pixels
from ..threads import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SOLVED = 1e-3
"""Of the baseline: a net below it copies."""
LARGEST_ERROR = 1e-4


@dataclass(frozen=True, kw_only=True)
class RnnConfig:
    """Copying symbols over a long delay; digits read pixel by pixel."""

    delays: tuple[int, ...] = (1000, 2000)
    """Blanks T between the symbols and their copy; none leaves the task out."""
    iterations: int = 500
    """Batches of the copying task; every one is new."""
    orders: tuple[Order, ...] = ("sequential", "permuted")
    """Orders in which pixels are read; none leaves the task out."""
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
    data: Digits = field(default_factory=default_images)
    """"mnist" or "digits"."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    """Where to train."""
    seed: int = 0
    """Of weights, batches and the permutation."""


class Rnn(Experiment[RnnConfig]):
    """One cell for each task and method; all methods see the same batches.

    Their learning rates are set by hand and not by an even search, see `recurrent.CHOICE`.
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
            data="digits",
            device="cpu",
        ),
        "paper": RnnConfig(),
    }
    preset_help = '"quick" takes about a minute on one core, "paper" six minutes on an H200.'

    def cells(self, config: RnnConfig) -> Sequence[str]:
        """Task and method."""
        _check(config)
        tasks = [*(f"copying-{T}" for T in config.delays), *config.orders]
        return [f"{task}-{method}" for task in tasks for method in config.methods]

    @one_thread()
    def run_cell(self, config: RnnConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train; the mean loss, the accuracy and the orthogonality of every round."""
        name, _, word = cell.rpartition("-")
        method = cast(Method, word)
        if is_missing(method):
            return {"task": name, "method": method, "missing": True}
        device = config.device
        task: Copying | Pixels
        options: dict[str, Any] = {"batch": config.batch, "seed": config.seed, "device": device}
        if name.startswith("copying"):
            task = Copying(int(name.removeprefix("copying-")), **options)
            hidden, num_steps = config.copy_hidden, config.iterations
        else:
            task = Pixels(config.data, cast(Order, name), **options)
            hidden, num_steps = config.pixel_hidden, config.epochs * task.num_batches
        learner = Learner(task, method, hidden=hidden, seed=config.seed, device=device)
        rows, times = _train(learner, num_steps, cell, run)
        if times:
            run.time(cell, "ms per iteration", 1e3 * median(times))
        return {
            "task": name,
            "method": method,
            "missing": False,
            "device": device_name(device),
            "hidden": hidden,
            "num_weights": learner.num_weights,
            "num_batches": task.num_batches,
            "baseline": task.baseline if isinstance(task, Copying) else None,
            "rows": rows,
        }

    def summarise(self, config: RnnConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The curves, what they end with, and when the copying task was solved."""
        found = []
        for name, cell in cells.items():
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
        return {"data": SOURCES[config.data], "batch": config.batch, "cells": found}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Who copies and after how many batches, how many digits are read, how orthogonal."""
        parts = []
        for task, cells in _by_task(results).items():
            said = ", ".join(_said(cell) for cell in cells)
            if cells[0]["baseline"] is not None:
                parts.append(f"Copying over {task.removeprefix('copying-')} blanks: {said}.")
            else:
                parts.append(f"Pixels, {task} ({results['data']}): {said}.")
        errors = [c["error"] for c in results["cells"] if c.get("error") is not None]
        if errors:
            kept = "stay" if max(errors) <= LARGEST_ERROR else "do not stay"
            parts.append(
                f"The transitions {kept} orthogonal to {LARGEST_ERROR:.0e}: the largest error is "
                f"{max(errors):.1e}."
            )
        if missing := sorted({c["method"] for c in results["cells"] if c["missing"]}):
            parts.append(f"Not installed, so left out: {', '.join(missing)}.")
        return " ".join(parts)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """One table for each kind of task."""
        copying: list[tuple[Value, ...]] = []
        pixels: list[tuple[Value, ...]] = []
        for task, cells in _by_task(results).items():
            for c in cells:
                ms = timing.get(c["cell"], {}).get("ms per iteration")
                head = (c["method"], c["hidden"], c["num_weights"])
                if c["baseline"] is not None:
                    T = int(task.removeprefix("copying-"))
                    seconds = None if ms is None else ms / 10
                    ours = (c["over_baseline"], c["solved_at"], c["error"], seconds)
                    copying.append((T, *head, *ours))
                else:
                    seconds = None if ms is None else ms * c["num_batches"] / 1e3
                    pixels.append((task, *head, c["accuracy"], c["error"], seconds))
        devices = {c["device"] for c in results["cells"] if not c["missing"]}
        where = f"Batches of {results['batch']}, on {' and '.join(sorted(devices))}. {CHOICE}"
        columns = ("method", "width", "weights")
        tables = (
            Table(
                "copying",
                "Mean loss of the last 20 batches over the baseline 10 ln 8 / (T + 20), and the "
                f"number of batches after which the mean of 20 was below {SOLVED:g} of it. The "
                "error is the largest ||W^T W - I||_F / sqrt(d) in training; seconds are those of "
                f"100 batches. {where}",
                ("T", *columns, "loss over baseline", "solved after", "error", "seconds"),
                tuple(copying),
            ),
            Table(
                "pixels",
                f"Accuracy on the test images after the last epoch; {results['data']}. Seconds are "
                f"those of an epoch. {where}",
                ("pixels", *columns, "test accuracy", "error", "seconds"),
                tuple(pixels),
            ),
        )
        return [table for table in tables if table.rows]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """A panel for each task."""

        def draw(canvas: "Canvas") -> None:
            tasks = _by_task(results)
            axes = canvas.subplots(1, len(tasks), squeeze=False)[0]
            methods = list(get_args(Method))
            for axis, (task, cells) in zip(axes, tasks.items(), strict=True):
                for cell in cells:
                    rows = [row for row in cell["rows"] if row["loss"] is not None]
                    label = cell["method"] if axis is axes[0] else None
                    colour = f"C{methods.index(cell['method'])}"
                    if cell["baseline"] is not None:
                        x = [row["step"] for row in rows]
                        y = [row["loss"] / cell["baseline"] for row in rows]
                        axis.semilogy(x, y, color=colour, label=label)
                        axis.axhline(SOLVED, color="#8c8c8c", linewidth=1, linestyle=":")
                        axis.set(xlabel="batches", ylabel="loss over baseline")
                    else:
                        x = [row["step"] / cell["num_batches"] for row in rows]
                        axis.plot(x, [r["accuracy"] for r in rows], color=colour, label=label)
                        axis.set(xlabel="epochs", ylabel="test accuracy")
                axis.set_title(task.replace("-", ", T = "))
            canvas.legend(loc="outside lower center", ncols=len(methods))

        tasks = len(_by_task(results))
        caption = (
            "Loss of the copying task over that of a net without memory (dotted: solved), and "
            f"accuracy on test images of {results['data']}, read pixel by pixel. {CHOICE}"
        )
        return [Figure("rnn", caption, draw, (2.0 + 2.6 * tasks, 3.6))] if tasks else []


def _train(
    learner: Learner, num_steps: int, cell: str, run: Run
) -> tuple[list[dict[str, Any]], list[float]]:
    """All rounds that are left, and the seconds of an iteration in each of these."""
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


def _check(config: RnnConfig) -> None:
    numbers = ("iterations", "epochs", "copy_hidden", "pixel_hidden", "batch")
    sizes = [*((name, getattr(config, name)) for name in numbers)]
    for name, value in [*sizes, *(("delays", delay) for delay in config.delays)]:
        if value < 1:
            raise RunError(f"`{name}` must be at least 1: got {value}.")
    if not config.methods or not (config.delays or config.orders):
        raise RunError(
            "one of `methods`, and one of `delays` or `orders`, must be given: got none."
        )
    check_device(config.device)


def _by_task(results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The cells that ran, by task."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in results["cells"]:
        if not cell["missing"]:
            found.setdefault(cell["task"], []).append(cell)
    return found


def _said(cell: Mapping[str, Any]) -> str:
    """What the verdict says of one method on one task."""
    method = cell["method"]
    if cell["diverged"]:
        return f"{method} diverged"
    if cell["baseline"] is None:
        return f"{method} {cell['accuracy']:.1%}"
    end = f"{cell['over_baseline']:.2g} of the baseline"
    if cell["solved_at"] is None:
        return f"{method} does not solve it ({end})"
    solved = f"{method} solves it after {cell['solved_at']:,} batches"
    return f"{solved} and ends at {end}" if cell["over_baseline"] >= SOLVED else solved
