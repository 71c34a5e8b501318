"""Table 2: sorting numbers by a flow on O(16), stochastic and exact (Sec. 9.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from skewflow.flows import largest_stable_step
from skewflow.geometry import haar

from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.run import Run
from ...runs.seeds import spawn
from .report import METHODS, figures_of, tables_of, verdict_of
from .sorting_run import SortingRun

DURATION = 50.0
"""Duration of the flow in every run: a run of step size eta has 50 / eta steps."""

STEP_SIZES = (1e-5, 5e-5, 1e-4, 1.5e-4, 1e-3, 1.5e-3, 1e-2, 1.5e-2, 0.1, 0.15)
"""The columns of Table 2."""


@dataclass(frozen=True, kw_only=True)
class Table2Config:
    """Sorting by a flow."""

    d: int = 16
    """Numbers in a sequence."""
    num_sequences: int = 10
    """Sequences to average over."""
    step_sizes: tuple[float, ...] = STEP_SIZES
    """Step sizes eta; each run takes 50 / eta steps."""
    ranges: tuple[int, ...] = (10, 1, 100, 10_000)
    """R: the numbers are uniform in [0, R]. The paper does not say how they were drawn."""
    smallest_steps: tuple[float, ...] = (1e-5, 1e-3, 1e-3, 1e-4)
    """The smallest step size for each R."""
    smallest_series: float = 1e-4
    """The smallest step size for the Taylor series."""
    chunk: int = 20_000
    """Steps between two checkpoints; no result depends on it."""
    seed: int = 0
    """Seed of sequences, starts and matchings."""


class Table2(Experiment[Table2Config]):
    """One cell for each R, step size and method."""

    name = "table2"
    title = "Table 2: sorting by a flow"
    paper = (
        "At small steps both integrators stay orthogonal; the stochastic one sorts up to "
        "eta = 0.001 and degrades slowly, the exact one sorts less well and breaks down (nan) from "
        "there on (Table 2, Sec. 9.3). The law of the numbers and the exponential are not stated, "
        "and the printed flow has the wrong sign; ours is the corrected one."
    )
    presets: Mapping[str, Table2Config] = {
        "quick": Table2Config(
            num_sequences=4,
            step_sizes=(1.5e-3, 1e-2, 0.1),
            ranges=(10, 10_000),
            smallest_steps=(1.5e-3, 1.5e-3),
        ),
        "paper": Table2Config(),
    }

    def cells(self, config: Table2Config) -> Sequence[str]:
        """A name such as "R=10,eta=0.001,exact" for each step size that is not too small."""
        return [
            f"R={R},eta={eta:g},{name}"
            for R, smallest in zip(config.ranges, config.smallest_steps, strict=True)
            for eta in config.step_sizes
            for name, (_, method, _) in METHODS.items()
            if eta >= max(smallest, config.smallest_series if method == "taylor" else 0.0)
        ]

    def run_cell(self, config: Table2Config, cell: str, run: Run) -> dict[str, Any]:
        """Follow the flow, with a checkpoint after each chunk of steps."""
        size, step, name = (part.split("=")[-1] for part in cell.split(","))
        _, method, terms = METHODS[name]
        generator = spawn(config.seed, cell) if method == "matchings" else None
        X0 = haar(
            config.d,
            batch=(config.num_sequences,),
            generator=spawn(config.seed, "starts"),
            dtype=torch.float64,
        )
        q = _sequences(config, int(size))
        flow = SortingRun(q, X0, float(step), method, terms=terms, generator=generator)
        if (state := run.load(cell)) is not None:
            flow.load_state_dict(state)
        num_steps = round(DURATION / flow.eta)
        while flow.step < num_steps:
            flow.advance(min(config.chunk, num_steps - flow.step))
            run.save(cell, flow.state_dict())
            run.progress(flow.step / num_steps)
        scores = flow.scores()
        finite = ~scores.diverged
        result = {
            "epsilon": scores.epsilon[finite].mean().item() if finite.any() else None,
            "inv": scores.inv.mean().item(),
            "least_inv": scores.inv.min().item(),
            "diverged": int(scores.diverged.sum()),
        }
        run.metric(cell, num_steps=num_steps, **result)
        return result

    def summarise(
        self, config: Table2Config, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """For each R the thresholds and one row for each step size."""
        groups = []
        for R in config.ranges:
            q = _sequences(config, R)
            rows = [
                {"eta": eta, "methods": found}
                for eta in config.step_sizes
                if (
                    found := {
                        name: cells[cell]
                        for name in METHODS
                        if (cell := f"R={R},eta={eta:g},{name}") in cells
                    }
                )
            ]
            stable = {
                "stochastic": largest_stable_step(q, scale=config.d - 1 + config.d % 2),
                "exact": largest_stable_step(q),
            }
            thresholds = {name: steps.median().item() for name, steps in stable.items()}
            groups.append({"R": R, "thresholds": thresholds, "rows": rows})
        return {"d": config.d, "num_sequences": config.num_sequences, "groups": groups}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Which R resembles which row of the paper, and the effect of an exact exponential."""
        return verdict_of(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of the scores beside the paper's, and of the differences from the paper."""
        return tables_of(results)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of inv against the step size, with a panel for each R and the thresholds."""
        return figures_of(results)


def _sequences(config: Table2Config, R: int) -> torch.Tensor:
    """The same sequences for every R, scaled."""
    generator = spawn(config.seed, "sequences")
    shape = (config.num_sequences, config.d)
    return R * torch.rand(shape, generator=generator, dtype=torch.float64)
