"""Max-cut on Gset: certified relaxations and cuts, beside pymanopt's trust region (Sec. 1)."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]

from skewflow.problems import max_cut, solve_block_sdp

from ...data.graphs import known
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.run import Run
from ...runs.threads import one_thread
from .graphs import cut_weight, load
from .report import draw_cuts, draw_gaps, draw_vectors, tables_of, verdict_of
from .rival import has_pymanopt, trust_region

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True, kw_only=True)
class MaxCutConfig:
    """Graphs and accuracies."""

    graphs: tuple[str, ...] = tuple(known()["gset"])
    """Graphs of Gset, whose files are in $SKEWFLOW_DATA/gset, or grid-k and random-n."""
    tol: float = 1e-6
    """Relative gap between relaxation and bound."""
    large: int = 4000
    """Smallest number of vertices of a large graph."""
    large_tol: float = 1e-5
    """The gap for large graphs."""
    patience: float = 3.0
    """Time limit of pymanopt as a multiple of our time, but at least half a second."""
    drawn: tuple[str, ...] = ("G1", "G11", "G35")
    """Graphs whose vectors are drawn."""
    seed: int = 0
    """Seed of the start, which is the same for both solvers, and of the rounding."""


class MaxCutGset(Experiment[MaxCutConfig]):
    """One cell for each graph."""

    name = "max-cut"
    title = "Max-cut: certified relaxations and cuts"
    paper = (
        "Semidefinite programs with unit diagonal are among the problems of optimisation with "
        "orthogonal matrices that the introduction names (Sec. 1). The paper gives no number."
    )
    preset_help = '"quick" takes seconds and needs no file, "paper" ten minutes and Gset.'
    presets: Mapping[str, MaxCutConfig] = {
        "quick": MaxCutConfig(graphs=("grid-8", "grid-16", "random-200"), drawn=("random-200",)),
        "paper": MaxCutConfig(),
    }

    def environment(self, config: MaxCutConfig) -> dict[str, str]:
        """The rival's version."""
        from importlib.metadata import version

        return {"pymanopt": version("pymanopt") if has_pymanopt() else "not installed"}

    def cells(self, config: MaxCutConfig) -> Sequence[str]:
        """The graphs."""
        return config.graphs

    @one_thread()
    def run_cell(self, config: MaxCutConfig, cell: str, run: Run) -> dict[str, Any]:
        """Solve, cut, check the cut edge by edge, and let the rival solve from the same start."""
        n, edges = load(cell)
        upper = sp.coo_array((edges[:, 2], edges[:, :2].T.astype(int)), shape=(n, n)).tocsr()
        W = upper + upper.T
        C = W / 4
        rank = math.ceil(math.sqrt(2 * n))  # at this rank no spurious optimum is known
        Y = np.random.default_rng(config.seed).standard_normal((n, rank))
        Y /= np.linalg.norm(Y, axis=1, keepdims=True)
        low = Y[:, : min(rank, max(2, math.ceil(1.5 * n ** (1 / 3))))]
        start = (low / np.linalg.norm(low, axis=1, keepdims=True))[:, None, :]
        _compile()
        tol = config.tol if n < config.large else config.large_tol
        began = time.process_time()
        sdp = solve_block_sdp(C, initial=start, tol=tol)
        seconds = time.process_time() - began
        run.time(cell, "relaxation", seconds)
        began = time.process_time()
        cut = max_cut(W, initial=sdp.factor, tol=tol, seed=config.seed)
        run.time(cell, "cut", time.process_time() - began)
        if has_pymanopt():
            limit = max(0.5, config.patience * seconds)
            _time_rival(run, cell, trust_region(C, Y, limit), sdp.value, limit)
        total = math.fsum(edges[:, 2]) / 2
        result: dict[str, Any] = {
            "n": n,
            "m": len(edges),
            "relaxation": total - sdp.value,
            "bound": total - sdp.bound,
            "gap": (sdp.value - sdp.bound) / (total - sdp.value),
            "certified": sdp.certified,
            "rank": sdp.rank,
            "cut": cut.value,
            "recomputed": cut_weight(edges, cut.side),
            "best": None,
            "listed": None,
            "history": [
                [total - s.value, None if math.isinf(s.bound) else total - s.bound]
                for s in sdp.history
            ],
        }
        if cell in known()["gset"]:
            listed = known()["gset"][cell]
            result |= {"best": listed["best"], "listed": listed["relaxation"]}
        if cell in config.drawn:
            vectors = sdp.factor[:, 0]
            axes = np.linalg.svd(vectors, full_matrices=False)[2][:2]
            result["vectors"] = (vectors @ axes.T).round(3).tolist()
            result["side"] = cut.side.astype(int).tolist()
        return result

    def summarise(
        self, config: MaxCutConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """The results of all cells, by graph."""
        return {"tol": config.tol, "patience": config.patience, "graphs": dict(cells)}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """The proven bounds, the agreement with listed values, and the quality of the cuts."""
        return verdict_of(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of the graphs and of the times."""
        return tables_of(results, timing)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figures of the vectors of some graphs, of all cuts, and of the gaps."""

        def vectors(canvas: "Canvas") -> None:
            draw_vectors(canvas, results)

        def cuts(canvas: "Canvas") -> None:
            draw_cuts(canvas, results)

        def gaps(canvas: "Canvas") -> None:
            draw_gaps(canvas, results)

        found = [
            Figure(
                "cuts",
                "Our cut and the proven bound over the best known cut, or over our cut where none "
                "is known. No cut lies above the bound.",
                cuts,
                (8.0, 4.0),
            ),
            Figure(
                "gaps",
                "Relative distance between the relaxation and the proven bound at each check. The "
                "dotted line is the tolerance.",
                gaps,
            ),
        ]
        if any("vectors" in g for g in results["graphs"].values()):
            caption = (
                "The unit vectors of the relaxation on their two principal axes, a point for each "
                "vertex, coloured by the side of the cut that they were rounded to."
            )
            found.insert(0, Figure("vectors", caption, vectors, (8.4, 3.2)))
        return found


def _compile() -> None:
    """Let numba load or compile the loops before the clock starts."""
    max_cut([(0, 1), (1, 2), (2, 0), (2, 3)])


def _time_rival(
    run: Run, cell: str, seen: list[tuple[float, float]], value: float, limit: float
) -> None:
    best = min(value, *(v for _, v in seen))
    for name, gap in (("pymanopt to 1e-4", 1e-4), ("pymanopt to 1e-6", 1e-6)):
        for seconds, found in seen:
            if found - best <= gap * abs(best):
                run.time(cell, name, seconds)
                break
    run.time(cell, "pymanopt", seen[-1][0])
    run.time(cell, "pymanopt stopped", float(seen[-1][0] > limit))
    run.time(cell, "pymanopt gap", (min(v for _, v in seen) - best) / abs(best))
