"""Table 1: floating-point operations of one update, counted while the code runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from skewflow.geometry import haar, omega, project
from skewflow.optim import FlowSGD
from skewflow.samplers import Balanced

from ...bench.peers.baselines import exact_exponential
from ...measure.timing import interleaved, ratio
from ...models.methods import r_star
from ...runs.experiment import Experiment, Figure, Table, Timing, Value
from ...runs.files import RunError
from ...runs.run import Run
from ...runs.seeds import spawn
from ...runs.threads import one_thread
from .operations import ABS, DRAWS, UNIFORM, count_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Setting = Literal["ES-200", "ES-400", "MNIST", "CIFAR"]
Shapes = tuple[tuple[int, int, int], ...]

SETTINGS: dict[str, Shapes] = {
    "ES-200": ((200, 200, 1),),
    "ES-400": ((400, 400, 1),),
    "MNIST": ((100, 100, 1),),
    "CIFAR": (
        (27, 16, 1),
        (144, 16, 36),
        (144, 32, 1),
        (288, 32, 35),
        (288, 64, 1),
        (576, 64, 35),
    ),
}
"""d, k and how often each shape occurs; CIFAR's are the 3 x 3 kernels of PlainNet-110."""

PAPER: dict[str, tuple[float | None, ...]] = {
    "exact": (1600, 12800, 200, 49000),
    ABS: (68, 272, None, None),
    UNIFORM: (None, None, 8.5, 2000),
    "stochastic s = r*": (None, None, 43, 14000),
    "projection p = 20": (84, 656, None, None),
    "projection p = 10": (164, 1296, None, None),
    "projection p = 8": (204, 1616, None, None),
    "projection p = 5": (324, 2576, None, None),
    "projection p = 4": (404, 3216, None, None),
}
"""Table 1 of the paper in 10^4 operations; "exact" and "projection" are lower bounds there, the
stochastic ones upper bounds. Its ES columns are of matchings drawn with h = |x| (Sec. 6.1), the
others of uniform ones (Sec. 6.2)."""

DENSE = "exact, FlowSGD"
"""The exact step of the optimiser, which is timed, but not counted."""


@dataclass(frozen=True, kw_only=True)
class Table1Config:
    """Operations and milliseconds of one update."""

    settings: tuple[Setting, ...] = get_args(Setting)
    """The sizes of the paper's experiments."""
    angle: float = 0.1
    """Spectral norm of eta Omega, which determines how often an exponential is squared."""
    rounds: int = 7
    """Interleaved rounds of the timing."""
    seed: int = 0
    """Seed of points, gradients and partitions."""


class Table1(Experiment[Table1Config]):
    """One cell for each setting."""

    name = "table1"
    title = "Table 1: operations of one update"
    paper = (
        "With s = 2 an update takes a small part of the operations of the exact method, and fewer "
        "than a projection every p <= 20 steps (Table 1, no convention of counting given)."
    )
    presets: Mapping[str, Table1Config] = {
        "quick": Table1Config(settings=("ES-200", "MNIST"), rounds=3),
        "paper": Table1Config(),
    }

    def cells(self, config: Table1Config) -> Sequence[str]:
        """One name for each setting."""
        if config.rounds < 1:
            raise RunError(f"--rounds must be at least 1: got {config.rounds}.")
        return list(config.settings)

    @one_thread()
    def run_cell(self, config: Table1Config, cell: str, run: Run) -> dict[str, Any]:
        """Count the operations of each method on each shape, and time them."""
        rows: dict[str, dict[str, int]] = {}
        times: dict[str, list[float]] = {}
        for n, (d, k, count) in enumerate(SETTINGS[cell]):
            generator = spawn(config.seed, cell, d, k)
            X = haar(d, k, generator=generator, dtype=torch.float32)
            G = torch.randn(d, k, generator=generator)
            eta = config.angle / torch.linalg.matrix_norm(omega(X, G), 2).item()
            for method, parts in count_all(X, G, eta, generator).items():
                row = rows.setdefault(method, {"distinct": 0, "all": 0})
                for part, number in parts.items():
                    row[part] = row.get(part, 0) + number
                row["distinct"] += sum(parts.values())
                row["all"] += count * sum(parts.values())
                run.metric(cell, method=method, d=d, k=k, count=count, **parts)
            for method, ms in _milliseconds(X, G, eta, config.rounds).items():
                before = times.get(method, [0.0] * len(ms))
                times[method] = [a + b for a, b in zip(before, ms, strict=True)]
            run.progress((n + 1) / len(SETTINGS[cell]))
        for method, ms in times.items():
            run.time(cell, f"ms {method}", median(ms))
            run.time(cell, f"{method} over {ABS}", ratio(times, method, ABS))
        return {"methods": rows}

    def summarise(
        self, config: Table1Config, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """The operations by setting and method."""
        return {"angle": config.angle, "counts": {n: c["methods"] for n, c in cells.items()}}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Whether the paper's bounds hold for our counts, and the factors between the methods."""
        broken, factors, slower = [], [], []
        for setting, methods in results["counts"].items():
            for method, row in methods.items():
                bound = _paper(method, setting)
                if bound is None:
                    continue
                ours = row["distinct"] / 1e4
                upper = method.startswith("stochastic")
                if (ours > bound) if upper else (ours < bound):
                    sign = "<" if upper else ">"
                    broken.append(f"{setting} {method} ({ours:.3g}, printed {sign} {bound:g})")
            exact, weighted, pairs = (methods[m]["distinct"] for m in ("exact", ABS, UNIFORM))
            factors.append(f"{setting} {exact / weighted:.0f} and {exact / pairs:.0f}")
            projected = methods["projection p = 20"]["distinct"]
            slower += [
                f"{setting} {m}" for m in (ABS, UNIFORM) if methods[m]["distinct"] > projected
            ]
        kept = f"do not hold for {'; '.join(broken)}" if broken else "all hold"
        more = f"more than both, but not than {'; '.join(slower)}" if slower else "more than both"
        return (
            f"The paper's bounds {kept}. The exact update takes this many times the operations of "
            f"s = 2 with h = |x| and with uniform matchings: {', '.join(factors)}; the paper's own "
            f"count of it, 2 d^3, is one product. A projection every 20 steps takes {more}."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of totals beside the paper's, of their parts, and of milliseconds."""
        counts = results["counts"]
        columns = ["method"]
        for setting in counts:
            columns += [f"{setting} paper", f"{setting} ours"]
        whole = "CIFAR" in counts
        table: list[tuple[Value, ...]] = []
        for method in PAPER:
            row: list[Value] = [method]
            for setting, methods in counts.items():
                row += [_bound(method, setting), methods[method]["distinct"] / 1e4]
            if whole:
                row.append(counts["CIFAR"][method]["all"] / 1e4)
            table.append(tuple(row))
        if whole:
            columns.append("CIFAR ours, all 109 kernels")
        totals = Table(
            "operations",
            "Operations of one update in 10^4. A product of m x k and k x n counts 2mkn, every "
            "other arithmetic operation 1, copies and comparisons 0, an SVD 14 m n^2 + 8 n^3. "
            f"r* = ceil(d / ln d); ||eta Omega|| = {results['angle']:g}. Matchings with h = |x| "
            "are drawn with an estimated norm (Sec. 3.3); their count is the mean of "
            f"{DRAWS} draws. The paper draws them so for ES, and uniformly for MNIST and CIFAR."
            + whole
            * " CIFAR sums six distinct shapes, whose 2 d^3 make the paper's exact entry.",
            tuple(columns),
            tuple(table),
        )
        parts = Table(
            "parts",
            "Where the operations go, in 10^4: entries of Omega, the exponentials (or the "
            "projection, over p), and the update of X.",
            ("setting", "method", "entries", "exponential or projection", "update"),
            tuple(
                (setting, method, *(row[p] / 1e4 for p in ("entries", "map", "update")))
                for setting, methods in counts.items()
                for method, row in methods.items()
            ),
        )
        timed = [DENSE, *PAPER]
        names = [n for n in timed if any(f"ms {n}" in timing.get(c, {}) for c in counts)]
        clock = Table(
            "milliseconds",
            "Milliseconds of one update, measured here on one thread in interleaved rounds: "
            f"FlowSGD for the stochastic ones and for {DENSE!r}, the (d, d) exponential for the "
            f"exact one, SGD and an SVD for p = 20.{_by_the_clock(timing, counts)} The paper gives "
            "none." + whole * " CIFAR sums the six distinct shapes.",
            ("method", *counts),
            tuple((n, *(timing.get(c, {}).get(f"ms {n}") for c in counts)) for n in names),
        )
        relative = Table(
            "ratios",
            f"Milliseconds over those of {ABS!r}: medians of the ratios inside a round. A method "
            "with a number below 1 is faster.",
            ("method", *counts),
            tuple((n, *(timing.get(c, {}).get(f"{n} over {ABS}") for c in counts)) for n in names),
        )
        return [totals, parts, clock, relative]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of our counts, filled, and the paper's bounds, hollow."""

        def draw(canvas: "Canvas") -> None:
            axis = canvas.subplots()
            settings = list(results["counts"])
            shown = ["exact", ABS, UNIFORM, "stochastic s = r*", "projection p = 20"]
            for n, method in enumerate(shown):
                at = [x + 0.12 * (n - 2) for x in range(len(settings))]
                ours = [results["counts"][s][method]["distinct"] for s in settings]
                paper = [1e4 * (_paper(method, s) or math.nan) for s in settings]
                axis.semilogy(at, ours, "o", color=f"C{n}", label=method, markersize=7)
                axis.semilogy(at, paper, "o", color=f"C{n}", markerfacecolor="none", markersize=7)
            axis.set_xticks(range(len(settings)), settings)
            axis.set_ylabel("operations of one update")
            canvas.legend(loc="outside right center")

        caption = "Operations of one update: ours filled, the paper's bounds hollow."
        return [Figure("table1", caption, draw)]


def _milliseconds(X: Tensor, G: Tensor, eta: float, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each method, once for each round."""

    def flow(**options: Any) -> Callable[[], object]:
        p = nn.Parameter(X.clone())
        p.grad = G
        return FlowSGD([p], lr=eta / len(X), **options).step

    Y = X.clone()

    def projected() -> None:
        Y.sub_(G, alpha=eta)
        projected.calls += 1  # type: ignore[attr-defined]
        if projected.calls % 20 == 0:  # type: ignore[attr-defined]
            Y.copy_(project(Y))

    projected.calls = 0  # type: ignore[attr-defined]
    steps: dict[str, Callable[[], object]] = {
        "exact": lambda: exact_exponential(X, G),
        DENSE: flow(block_size="dense"),
        ABS: flow(block_size=2, sampler=Balanced(2)),
        UNIFORM: flow(block_size=2, sampler="uniform"),
        "stochastic s = r*": flow(block_size=r_star(len(X)), sampler="uniform"),
        "projection p = 20": projected,
    }
    times, failures = interleaved(steps, X.device, rounds=rounds, seconds=0.01)
    if failures:
        raise RuntimeError(f"steps that are timed must not fail: {failures}.")
    return times


def _by_the_clock(timing: Timing, settings: Sequence[str]) -> str:
    """Whether h = |x| is faster than the exact step, and by how much; empty without timing."""
    name = f"{DENSE} over {ABS}"
    found = {s: timing[s][name] for s in settings if name in timing.get(s, {})}
    faster = [f"{s} {value:.2g}" for s, value in found.items() if value > 1]
    slower = [f"{s} {1 / value:.2g}" for s, value in found.items() if value <= 1]
    text = f" {ABS!r} is faster than {DENSE!r} by these factors: {', '.join(faster)}."
    return text * bool(faster) + f" It is slower by: {', '.join(slower)}." * bool(slower)


def _paper(method: str, setting: str) -> float | None:
    return PAPER[method][list(SETTINGS).index(setting)]


def _bound(method: str, setting: str) -> str | None:
    value = _paper(method, setting)
    if value is None:
        return None
    return f"{'<' if method.startswith('stochastic') else '>'} {value:g}"
