"""Cost and noise of each sampler's estimate, on synthetic and real gradients."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from skewflow.samplers import (
    Sampler,
    Sparsified,
)
from skewflow.tournaments import EdgeWeights, heavy_matchings
from skewflow.tournaments.theory import (
    exact_variance,
    family_optimal_variance,
)

from ...data import SOURCES, Digits, default_images
from ...runs.experiment import Experiment, Figure, Table, Timing, Value
from ...runs.run import Run
from ...runs.seeds import spawn
from ...runs.threads import one_thread
from .cases import CASES, KEPT, Case
from .gradients import REAL, REGRESSION_ROWS, Gradient, make_gradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LARGEST_LAW = 8
"""Largest number of rows at which the law is enumerated."""


@dataclass(frozen=True, kw_only=True)
class VarianceConfig:
    """Second moments of the estimates, and costs of draws."""

    sizes: tuple[int, ...] = (8, 64, 512)
    """Rows d of the synthetic matrices and of the network's layer."""
    block_sizes: tuple[int, ...] = (2, 16)
    """Block sizes s, used where s < d."""
    draws: int = 1000
    """Number of draws of a Monte Carlo estimate."""
    train_steps: int = 200
    """Training steps before a real gradient is taken."""
    timed_draws: int = 20
    """Number of draws for a measured cost; the median counts."""
    data: Digits = field(default_factory=default_images)
    """The dataset: "mnist" or "digits"."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; one matrix of each kind for each."""


class Variance(Experiment[VarianceConfig]):
    """One cell for each matrix and block size: all samplers on the same Omega."""

    name = "variance"
    title = "The samplers: noise, and noise for the time they take"
    paper = (
        "Nonuniform sampling should reduce the variance (Sec. 3.2, 9.6); by the paper's own lemmas "
        "h(x) = x^2 has exactly the uniform variance, (d-s)/(s-1) ||Omega||^2."
    )
    presets: Mapping[str, VarianceConfig] = {
        "quick": VarianceConfig(
            sizes=(8, 32),
            block_sizes=(2, 8),
            draws=100,
            train_steps=20,
            timed_draws=5,
            seeds=(0,),
        ),
        "paper": VarianceConfig(),
    }

    def cells(self, config: VarianceConfig) -> Sequence[str]:
        """A name for each kind of matrix, number of rows, block size and seed."""
        kinds = [(k, d) for k in ("gaussian", "heavy", "lowrank", "mlp") for d in config.sizes]
        kinds.append(("regression", REGRESSION_ROWS[config.data]))
        return [
            f"{k}-{d}-{s}-{seed}"
            for k, d in kinds
            for s in config.block_sizes
            if s < d
            for seed in config.seeds
        ]

    @one_thread()
    def run_cell(self, config: VarianceConfig, cell: str, run: Run) -> dict[str, Any]:
        """Compute the second moment of each sampler's estimate over the squared norm of Omega."""
        kind, *numbers = cell.split("-")
        d, s, seed = map(int, numbers)
        gradient = make_gradient(kind, d, seed, data=config.data, steps=config.train_steps)
        W = EdgeWeights(gradient.X, gradient.G)
        W.dense()
        rows = []
        cases = {name: c for name, c in CASES.items() if s == 2 or not c.matchings_only}
        if kind not in REAL:
            cases.pop(KEPT, None)
        for n, (name, case) in enumerate(cases.items()):
            generator = spawn(seed, cell, name)
            if name == KEPT:
                moment = _kept(gradient)
            else:
                moment = _second_moment(case, W, s, config.draws, generator)
            rows.append({"sampler": name, **moment})
            run.metric(cell, sampler=name, **moment)
            ms = _milliseconds(case.make(d, s), gradient, config.timed_draws)
            run.time(cell, f"ms {name}", ms)
            run.progress((n + 1) / len(cases))
        return {"kind": kind, "d": d, "s": s, "rows": rows}

    def summarise(
        self, config: VarianceConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Means over the seeds for each kind of matrix, and the range relative to uniform."""
        groups: dict[tuple[str, int, int], list[str]] = {}
        for name, cell in cells.items():
            groups.setdefault((cell["kind"], cell["d"], cell["s"]), []).append(name)
        found = []
        for (kind, d, s), names in groups.items():
            seeds = [{row["sampler"]: row for row in cells[name]["rows"]} for name in names]
            rows = {}
            for sampler, first in seeds[0].items():
                mine = [seed[sampler] for seed in seeds]
                relative = [seed[sampler]["ratio"] / seed["uniform"]["ratio"] for seed in seeds]
                rows[sampler] = {
                    "ratio": sum(row["ratio"] for row in mine) / len(mine),
                    "error": sum(row["error"] ** 2 for row in mine) ** 0.5 / len(mine),
                    "how": first["how"],
                    "least": min(relative),
                    "largest": max(relative),
                }
            found.append({"kind": kind, "d": d, "s": s, "cells": names, "rows": rows})
        return {"data": SOURCES[config.data], "num_seeds": len(config.seeds), "groups": found}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """How much the best law gains over the uniform one on each kind of matrix, at s = 2."""
        parts = []
        for group in _largest(results):
            ratios = {name: row["ratio"] for name, row in group["rows"].items()}
            best = min(ratios, key=lambda name: ratios[name])
            parts.append(
                f"{group['kind']} (d = {group['d']}) {1 - ratios['abs'] / ratios['uniform']:.1%} "
                f"by abs, at most {1 - ratios[best] / ratios['uniform']:.1%}, by {best}"
            )
        kept = [g["rows"][KEPT] for g in results["groups"] if KEPT in g["rows"]]
        least, largest = min(r["least"] for r in kept), max(r["largest"] for r in kept)
        return (
            "Reduction of the uniform second moment by nonuniform matchings: "
            f"{'; '.join(parts)}. Heavy matchings of the training step before have {least:.2f} to "
            f"{largest:.2f} times the uniform moment. Real gradients are from {results['data']}."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of second moments, of their range, of milliseconds, and of worth per time."""
        moments: list[tuple[Value, ...]] = []
        ranges: list[tuple[Value, ...]] = []
        costs: list[tuple[Value, ...]] = []
        worth: list[tuple[Value, ...]] = []
        for group in results["groups"]:
            head = (group["kind"], group["d"], group["s"])
            rows = group["rows"]
            moments.append((*head, *(_shown(rows.get(case)) for case in CASES)))
            ranges.append((*head, *(_range(rows.get(case)) for case in CASES)))
            ms = {case: _median_ms(timing, group["cells"], case) for case in CASES}
            costs.append((*head, *(ms[case] for case in CASES)))
            price = {c: rows[c]["ratio"] * m for c, m in ms.items() if c in rows and m is not None}
            base = price.get("uniform")
            worth.append(
                (*head, *(base / price[c] if base and c in price else None for c in CASES))
            )
        columns = ("matrix", "d", "s", *CASES)
        mean = (
            f"mean of {results['num_seeds']} matrices" if results["num_seeds"] > 1 else "one matrix"
        )
        return [
            Table(
                "moments",
                f"E||estimate||^2 / ||Omega||^2, {mean}: by formula or, at d <= {LARGEST_LAW}, by "
                "enumeration; with a standard error where it is a Monte Carlo mean. The paper's "
                "value for uniform and square is (d-1)/(s-1).",
                columns,
                tuple(moments),
            ),
            Table(
                "ranges",
                "The same over that of uniform: least and largest among the matrices, one number "
                "where they agree.",
                columns,
                tuple(ranges),
            ),
            Table(
                "milliseconds",
                "Milliseconds for a fresh gradient: the draw, what it reads of Omega, and the "
                "blocks. Heavy matchings are built for each gradient, except those of the previous "
                "step, whose construction is not counted.",
                columns,
                tuple(costs),
            ),
            Table(
                "worth",
                "Worth per millisecond: second moment times milliseconds, uniform's over the "
                "sampler's. Above 1 the sampler beats averaging more uniform draws in the same "
                "time; the gradient itself is not counted.",
                columns,
                tuple(worth),
            ),
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of second moments relative to uniform at s = 2, for the largest d."""

        def draw(canvas: "Canvas") -> None:
            axis = canvas.subplots()
            names = list(CASES)
            for n, group in enumerate(_largest(results)):
                at = [len(names) - i + 0.13 * (2 - n) for i in range(len(names))]
                shown = [
                    (y, m)
                    for y, name in zip(at, names, strict=True)
                    if (m := group["rows"].get(name))
                ]
                y, rows = [y for y, _ in shown], [row for _, row in shown]
                x = [row["ratio"] / group["rows"]["uniform"]["ratio"] for row in rows]
                label = f"{group['kind']}, d = {group['d']}"
                axis.semilogx(x, y, "o", color=f"C{n}", label=label)
                axis.hlines(
                    y, [r["least"] for r in rows], [r["largest"] for r in rows], color=f"C{n}"
                )
            axis.set_yticks([len(names) - i for i in range(len(names))], names)
            axis.axvline(1.0, color="#8c8c8c", linewidth=1)
            axis.set_xlabel("second moment over that of uniform, s = 2")
            canvas.legend(loc="outside right center")

        caption = (
            "Left of the line a sampler's estimate is less noisy than the uniform one; a bar is "
            "the range over the matrices."
        )
        return [Figure("variance", caption, draw)]


def _second_moment(
    case: Case, W: EdgeWeights, s: int, draws: int, generator: torch.Generator
) -> dict[str, Any]:
    """The ratio, its standard error, and the way of its computation."""
    norm = W.squared_norm()
    if case.variance is not None:
        return {"ratio": 1 + case.variance(W, s) / norm, "error": 0.0, "how": "formula"}
    sampler = case.make(W.d, s)
    if W.d <= LARGEST_LAW and not isinstance(sampler, Sparsified):
        ratio = 1 + exact_variance(sampler.law(W), W) / norm
        return {"ratio": ratio, "error": 0.0, "how": "enumeration"}
    values = []
    for _ in range(draws):
        blocks = sampler.sample(W, generator=generator).blocks(W)
        values.append(sum(b.to(torch.float64).square().sum().item() for b in blocks) / norm)
    spread = torch.tensor(values, dtype=torch.float64)
    error = spread.std().item() / len(values) ** 0.5
    return {"ratio": spread.mean().item(), "error": error, "how": "Monte Carlo"}


def _kept(gradient: Gradient) -> dict[str, Any]:
    """The second moment with the heavy matchings of the previous step."""
    W = EdgeWeights(gradient.X, gradient.G)
    old = heavy_matchings(EdgeWeights(gradient.X_before, gradient.G_before))
    ratio = 1 + family_optimal_variance(W, old) / W.squared_norm()
    return {"ratio": ratio, "error": 0.0, "how": "formula"}


def _milliseconds(sampler: Sampler, gradient: Gradient, draws: int) -> float:
    """Median milliseconds of a draw for a new gradient, measured for at most a second."""
    generator = spawn(0, "timing")
    times: list[float] = []
    while len(times) < draws + 1 and (len(times) < 3 or sum(times) < 1e3):
        began = time.perf_counter()
        W = EdgeWeights(gradient.X, gradient.G)
        sampler.sample(W, generator=generator).blocks(W)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times[1:])  # the first one compiles and fills caches


def _largest(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups of matchings with the largest d of each kind."""
    found: dict[str, dict[str, Any]] = {}
    for group in results["groups"]:
        if group["s"] == 2 and group["d"] >= found.get(group["kind"], group)["d"]:
            found[group["kind"]] = group
    return list(found.values())


def _median_ms(timing: Timing, cells: Sequence[str], case: str) -> float | None:
    found = [ms for c in cells if (ms := timing.get(c, {}).get(f"ms {case}")) is not None]
    return median(found) if found else None


def _range(row: Mapping[str, Any] | None) -> Value:
    if row is None:
        return None
    least, largest = f"{row['least']:.3g}", f"{row['largest']:.3g}"
    return least if least == largest else f"{least} to {largest}"


def _shown(row: Mapping[str, Any] | None) -> Value:
    if row is None:
        return None
    if row["how"] != "Monte Carlo":
        return float(row["ratio"])
    return f"{row['ratio']:.3g} ± {row['error']:.1g}"
