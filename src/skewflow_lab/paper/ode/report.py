"""Verdict, tables and figure of the differential equations."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ...runs.experiment import Figure, Table, Timing, Value
from ..statistics import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NAMES = {
    "exact": "OrthogonalODE, exact",
    "stochastic": "OrthogonalODE, stochastic",
    "strang": "OrthogonalODE, strang",
    "plain": "neural ODE, free weight",
    "residual": "residual net",
}
TASKS = {"images": "whole images", "pixels": "pixel by pixel"}


def verdict_of(results: Mapping[str, Any]) -> str:
    """Accuracies, how long gradients are at the start, and what the adjoint needs."""
    parts = []
    for task, rows in results["tasks"].items():
        said = ", ".join(f"{NAMES[m]} {percent(row['accuracy'])}" for m, row in rows.items())
        parts.append(f"Test accuracy on {results['data']}, {TASKS[task]}: {said}.")
    trained = {m: row["norms"] for m, row in results["tasks"]["images"].items()}
    for norms, where in (
        (results["depth"], f"At the start of {max(results['depths'])} untrained steps"),
        (trained, f"At the start of the {len(next(iter(trained.values())))} trained ones"),
    ):
        said = ", ".join(f"{NAMES[m]} {values[-1]:.3g}" for m, values in norms.items())
        nearest = min(norms, key=lambda m: abs(math.log(norms[m][-1])))
        parts.append(
            f"{where}, a gradient that has length 1 after them has the length: {said}; "
            f"{NAMES[nearest]} is nearest to 1."
        )
    errors = [row["error"] for rows in results["tasks"].values() for row in rows.values()]
    if any(error is not None for error in errors):
        worst = max(error for error in errors if error is not None)
        parts.append(f"W(T) of the trained flows is orthogonal to {worst:.0e}.")
    if results["memory"]:
        parts.append(_memory_said(results["memory"], results["memory_steps"]))
    return " ".join(parts)


def _memory_said(memory: Mapping[str, Any], steps: Sequence[int]) -> str:
    same = all(len(set(found["adjoint"])) == 1 for found in memory.values())
    more = min(found["autograd"][-1] / found["adjoint"][-1] for found in memory.values())
    at = " and ".join(f"{n:,}" for n in steps)
    return (
        f"The adjoint needs {'the same' if same else 'different'} memory at {at} steps; autograd "
        f"through {steps[-1]:,} of them needs at least {more:,.0f} times as much."
    )


def tables_of(results: Mapping[str, Any], timing: Timing) -> list[Table]:
    """Accuracies, gradients and memory."""
    accuracy: list[tuple[Value, ...]] = []
    for task, rows in results["tasks"].items():
        for method, row in rows.items():
            seconds = [t for c in row["cells"] if (t := timing.get(c, {}).get("ms per step"))]
            accuracy.append(
                (
                    TASKS[task],
                    NAMES[method],
                    row["parameters"],
                    row["rate"],
                    row["accuracy"]["mean"],
                    row["accuracy"]["sd"],
                    row["error"],
                    median(seconds) if seconds else None,
                )
            )
    columns = (
        "task", "method", "parameters", "learning rate", "test accuracy, %", "± (seeds)",
        "orthogonality error of W(T)", "ms per step",
    )  # fmt: skip
    caption = (
        f"{results['data']}, {results['num_seeds']} seeds. The learning rate has the least loss in "
        f"training of {', '.join(f'{rate:g}' for rate in results['rates'])}. Milliseconds are "
        "those of a training step on one thread."
    )
    depths = results["depths"]
    gradients = Table(
        "gradients",
        "Mean length, at the start of an untrained flow, of a gradient that has length 1 after so "
        "many steps.",
        ("method", *(f"{n:,} steps" for n in depths)),
        tuple((NAMES[m], *values) for m, values in results["depth"].items()),
    )
    memory = Table(
        "memory",
        "Bytes that a forward and a backward pass hold at once.",
        ("method", "gradient", *(f"{n:,} steps" for n in results["memory_steps"])),
        tuple(
            (NAMES[method], gradient, *found[gradient])
            for method, found in results["memory"].items()
            for gradient in found
        ),
    )
    return [Table("accuracy", caption, columns, tuple(accuracy)), gradients, memory]


def figures_of(results: Mapping[str, Any]) -> list[Figure]:
    """Gradient norms over the depth, before and after training."""
    trained = {m: row["norms"] for m, row in results["tasks"]["images"].items()}

    def gradients(canvas: "Canvas") -> None:
        left, right = canvas.subplots(1, 2)
        for method, values in results["depth"].items():
            left.loglog(results["depths"], values, marker="o", label=NAMES[method])
        for method, values in trained.items():
            right.semilogy(range(1, len(values) + 1), values, label=NAMES[method])
        left.set(title="untrained", xlabel="steps", ylabel="length at the start")
        right.set(title="trained on images", xlabel="steps")
        left.legend(fontsize=7)

    return [
        Figure(
            "gradients",
            "The length that a gradient of length 1 has at the start of the flow, against the "
            "number of steps that it goes through; means over a batch and the seeds.",
            gradients,
            (8.0, 3.6),
        )
    ]
