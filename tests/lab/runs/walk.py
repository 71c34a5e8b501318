"""A small experiment for the tests of the frame: random walks with states inside the cells."""

import os
import time
from dataclasses import dataclass

import torch

from skewflow_lab.runs.experiment import Experiment, Figure, Table
from skewflow_lab.runs.files import RunError
from skewflow_lab.runs.seeds import spawn


@dataclass(frozen=True, kw_only=True)
class WalkConfig:
    """How far."""

    cells: int = 3
    chunks: int = 4
    seeds: tuple[int, ...] = (0, 1)


class Walk(Experiment[WalkConfig]):
    """Sums of random numbers."""

    name = "walk"
    title = "A random walk"
    paper = "Nothing."
    presets = {"quick": WalkConfig(), "paper": WalkConfig(cells=5)}  # noqa: RUF012

    def cells(self, config):
        return [f"cell-{n},seed-{seed}" for n in range(config.cells) for seed in config.seeds]

    def run_cell(self, config, cell, run):
        state = run.load(cell) or {"chunk": 0, "x": torch.zeros(50, dtype=torch.float64)}
        x = state["x"]
        for chunk in range(state["chunk"], config.chunks):
            x = x * 0.9 + torch.randn(50, generator=spawn(0, cell, chunk), dtype=torch.float64)
            run.metric(cell, chunk=chunk, norm=x.norm().item())
            run.save(cell, {"chunk": chunk + 1, "x": x})
            run.progress((chunk + 1) / config.chunks)
        run.time(cell, "ms", 1.0)
        return {"norm": x.norm().item()}

    def summarise(self, config, cells):
        return {"norms": [cell["norm"] for cell in cells.values()]}

    def verdict(self, results):
        return f"{len(results['norms'])} walks ended."

    def tables(self, results, timing):
        rows = tuple((n, norm) for n, norm in enumerate(results["norms"]))
        return [Table("ends", "Where they ended.", ("walk", "norm"), rows)]

    def figures(self, results):
        draw = lambda canvas: canvas.subplots().plot(results["norms"])  # noqa: E731
        return [Figure("walk", "The ends.", draw)]


class Walks(Walk):
    """Its cells may run at the same time."""

    independent = True


class Failing(Walks):
    """One cell raises."""

    def run_cell(self, config, cell, run):
        if cell == "cell-1,seed-0":
            raise RunError("this cell fails.")
        return super().run_cell(config, cell, run)


class Dying(Walks):
    """One cell ends its process."""

    def run_cell(self, config, cell, run):
        if cell == "cell-1,seed-0":
            os._exit(3)
        return super().run_cell(config, cell, run)


class Slow(Walks):
    """Every chunk takes a while."""

    def run_cell(self, config, cell, run):
        save = run.save

        def slowly(cell, state):
            save(cell, state)
            (run.folder / f"{cell}.pid").write_text(str(os.getpid()))
            time.sleep(0.2)

        run.save = slowly
        return super().run_cell(config, cell, run)
