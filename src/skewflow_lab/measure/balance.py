"""How balanced Omega is during training: measurements, their table and figure (Sec. 9.2)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from skewflow.geometry import haar
from skewflow.tournaments import EdgeWeights
from skewflow.tournaments.theory import rho

from ..runs.experiment import Figure, Table, Value
from ..runs.seeds import spawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BLOCK_SIZES = (2, 4, 5, 10, 20, 25, 50)
"""Block sizes of the paper's figure."""

Rows = Sequence[Mapping[str, Any]]


def sizes(d: int) -> list[int]:
    """The paper's block sizes that split d rows into two blocks or more."""
    return [s for s in BLOCK_SIZES if 2 * s <= d]


def measure(X: Tensor, G: Tensor, block_sizes: Sequence[int]) -> dict[str, float]:
    """The values of rho, by block size, at one point of a training."""
    W = EdgeWeights(X, G)
    return {str(s): rho(W, s) for s in block_sizes}


def noise(d: int, block_sizes: Sequence[int]) -> dict[str, float]:
    """The values of rho, by block size, for a gradient that is pure noise."""
    generator = spawn(0, "rho of noise", d)
    X = haar(d, generator=generator, dtype=torch.float64)
    return measure(X, torch.randn(d, d, generator=generator, dtype=X.dtype), block_sizes)


def summarise(d: int, block_sizes: Sequence[int], rows: Rows) -> list[dict[str, Any]]:
    """For each s the mean, least and largest rho of a training's measurements."""
    found = []
    for s in block_sizes:
        values = [row["rho"][str(s)] for row in rows]
        mean = sum(values) / len(values)
        found.append(
            {
                "s": s,
                "d_over_s": d / s,
                "mean": mean,
                "least": min(values),
                "largest": max(values),
                "factor": mean / (d / s),
            }
        )
    return found


def verdict(sizes: Rows) -> str:
    """Say how much rho changed, and how far from d/s it is."""
    moved = max(size["largest"] / size["least"] for size in sizes)
    factors = [size["factor"] for size in sizes]
    constant = "hardly changes" if moved < 1.5 else "changes"
    near = "follows" if max(factors) / min(factors) < 2 else "does not follow"
    return (
        f"rho {constant} (largest over least value at most {moved:.2f}) and {near} d/s: the factor "
        f"lies between {min(factors):.2f} and {max(factors):.2f}"
    )


def table(groups: Sequence[tuple[tuple[Value, ...], Rows]], names: tuple[str, ...] = ()) -> Table:
    """One row for each group and s; `names` are the columns that tell groups apart."""
    shown = ("s", "d_over_s", "mean", "least", "largest", "factor")
    noisy = all("noise" in z for _, sizes in groups for z in sizes)
    rows = tuple(
        (*key, *(z[name] for name in shown), 2 * z["mean"], *((z["noise"],) if noisy else ()))
        for key, sizes in groups
        for z in sizes
    )
    columns = ("s", "paper: about c d/s, d/s =", "ours: mean rho", "least", "largest")
    last = ("of pure noise",) if noisy else ()
    return Table(
        "rho",
        "rho = ||h(Omega)||_1 / gamma with h = abs over the whole of training and all seeds. The "
        "last column takes gamma as printed, the sum over only the triangle. The paper shows a "
        "figure only, which our source of it lacks.",
        (*names, *columns, "ours over d/s", "with gamma as printed", *last),
        rows,
    )


def figure(name: str, sizes: Rows, curves: Mapping[str, Rows], caption: str, xlabel: str) -> Figure:
    """Draw the curves on a logarithmic axis, with d/s dotted."""

    def draw(canvas: "Canvas") -> None:
        axis = canvas.subplots()
        for n, size in enumerate(sizes):
            colour = f"C{n}"
            for m, rows in enumerate(curves.values()):
                steps = [row["step"] for row in rows]
                values = [row["rho"][str(size["s"])] for row in rows]
                label = f"s = {size['s']}" if m == 0 else None
                axis.semilogy(steps, values, color=colour, label=label)
            axis.axhline(size["d_over_s"], color=colour, linestyle=":", linewidth=1)
        axis.set(xlabel=xlabel, ylabel="rho")
        canvas.legend(loc="outside right center")

    return Figure(name, f"{caption}, one line for each seed; dotted lines are d/s.", draw)
