"""Theorem 5.1 on a quadratic: the bound beside the measured gradient norms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.run import Run
from ...runs.seeds import spawn
from ...runs.threads import one_thread
from .quadratic import quadratic_convergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True, kw_only=True)
class ConvergenceConfig:
    """Stochastic ascent of a quadratic whose constants are known."""

    sizes: tuple[int, ...] = (4, 16, 32)
    """Rows and columns d."""
    num_steps: int = 20_000
    """Steps of each run; the step size is the best one for the bound."""
    num_runs: int = 20
    """Runs from the same start, to average over."""
    seed: int = 0
    """Seed of starts and matchings."""


class Convergence(Experiment[ConvergenceConfig]):
    """One cell for each size."""

    name = "convergence"
    title = "Theorem 5.1: the bound and the measured gradient"
    paper = (
        "With unbiased estimates the least expected squared gradient norm of T steps is at most "
        "2(F* - F_0) / sum eta + sigma^2 ((2 sqrt(d) + 1) L + ||grad F(I)||) sum eta^2 / sum eta "
        "(Theorem 5.1). The paper measures no such run."
    )
    presets: Mapping[str, ConvergenceConfig] = {
        "quick": ConvergenceConfig(sizes=(4, 8, 16), num_steps=1500, num_runs=10),
        "paper": ConvergenceConfig(),
    }

    def cells(self, config: ConvergenceConfig) -> Sequence[str]:
        """One name for each size."""
        return [f"d={d}" for d in config.sizes]

    @one_thread()
    def run_cell(self, config: ConvergenceConfig, cell: str, run: Run) -> dict[str, Any]:
        """Run, and record the means at steps that are evenly spaced on a logarithmic axis."""
        found = quadratic_convergence(
            int(cell.removeprefix("d=")),
            num_steps=config.num_steps,
            num_runs=config.num_runs,
            generator=spawn(config.seed, cell),
        )
        squares = found.squared_norms.tolist()
        least = list(accumulate(squares, min))
        T = len(squares)
        steps = sorted({min(T, round(T ** (n / 60))) for n in range(61)})
        return {
            "eta": found.eta,
            "trivial": found.trivial_bound,
            "rows": [
                {
                    "steps": t,
                    "square": squares[t - 1],
                    "error": found.standard_errors[t - 1].item(),
                    "least": least[t - 1],
                    # The step size makes both terms of the bound equal after all T steps; after t
                    # steps the first term is T / t times as large.
                    "bound": found.bound / 2 * (1 + T / t),
                }
                for t in steps
            ],
        }

    def summarise(
        self, config: ConvergenceConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """The curves, and the ratio of the bound to the measured norm at the end."""
        sizes = []
        for d, cell in zip(config.sizes, cells.values(), strict=True):
            last = cell["rows"][-1]
            sizes.append(
                {
                    "d": d,
                    **cell,
                    "holds": all(row["least"] <= row["bound"] for row in cell["rows"]),
                    "loose": last["bound"] / last["least"],
                }
            )
        return {"num_steps": config.num_steps, "num_runs": config.num_runs, "sizes": sizes}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Whether the bound holds, how loose it is, and whether it is below the trivial bound."""
        sizes = results["sizes"]
        broken = [f"d = {z['d']}" for z in sizes if not z["holds"]]
        holds = f"is broken at {', '.join(broken)}" if broken else "holds at every step"
        loose = ", ".join(f"{z['loose']:.0f} at d = {z['d']}" for z in sizes)
        empty = [f"d = {z['d']}" for z in sizes if z["rows"][-1]["bound"] >= z["trivial"]]
        says = (
            f"it says nothing at {', '.join(empty)}, where it exceeds the trivial bound"
            if empty
            else "it lies below the trivial bound at each size"
        )
        return (
            f"The bound {holds}; after {results['num_steps']:,} steps it is larger than the least "
            f"squared gradient norm by a factor of {loose}, and {says}."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The table with a row for each size."""
        rows = tuple(
            (
                z["d"],
                z["eta"],
                z["rows"][0]["square"],
                z["rows"][-1]["square"],
                z["rows"][-1]["least"],
                z["rows"][-1]["bound"],
                z["loose"],
                z["trivial"],
            )
            for z in results["sizes"]
        )
        return [
            Table(
                "bound",
                "Squared gradient norms ||Omega||_F^2 of F = tr(X^T A X N) / 2, A and N diagonal "
                f"and equally spaced in [-1, 1], mean of {results['num_runs']} runs of "
                f"{results['num_steps']:,} uniform matchings. The bound is the paper's, with exact "
                "constants; the last column is the largest value that any X has, or more.",
                (
                    "d",
                    "eta",
                    "ours: at the start",
                    "at the end",
                    "least",
                    "paper: bound",
                    "bound over least",
                    "trivial bound",
                ),
                rows,
            )
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of bounds and curves, with a colour for each size."""

        def draw(canvas: "Canvas") -> None:
            axis = canvas.subplots()
            for n, z in enumerate(results["sizes"]):
                steps = [row["steps"] for row in z["rows"]]
                for key, style, label in (
                    ("least", "-", "measured"),
                    ("bound", "--", "bound"),
                ):
                    values = [row[key] for row in z["rows"]]
                    axis.loglog(steps, values, style, color=f"C{n}", label=f"d = {z['d']}, {label}")
                axis.axhline(z["trivial"], color=f"C{n}", linestyle=":", linewidth=1)
            axis.set(xlabel="steps", ylabel="least squared gradient norm so far")
            canvas.legend(loc="outside right center")

        caption = (
            "Least mean squared gradient norm of the steps so far (lines) and the bound of "
            "Theorem 5.1 for as many steps (dashed); dotted: the trivial bound, above which the "
            "theorem says nothing."
        )
        return [Figure("convergence", caption, draw)]
