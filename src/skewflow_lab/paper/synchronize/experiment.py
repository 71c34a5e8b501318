"""Poses of SLAM graphs: certified optima beside SE-Sync's and GTSAM's (Sec. 1)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skewflow.problems import PoseGraph, average_rotations, synchronize

from ...data.graphs import known
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.run import Run
from ...runs.threads import one_thread
from .graphs import Array, dead_reckoning, load, objective, packed
from .report import draw_gaps, draw_paths, tables_of, verdict_of
from .rivals import METHODS, SHONAN, has_gtsam, solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True, kw_only=True)
class SynchronizeConfig:
    """Graphs and accuracies."""

    graphs: tuple[str, ...] = tuple(known()["pose_graphs"])
    """Pose graphs, whose files are in $SKEWFLOW_DATA/pose_graphs, or sphere-k."""
    tol: float = 1e-5
    """Relative gap between objective and bound."""
    limit: int = 60
    """Limit of processor time of each run of GTSAM, in seconds."""
    drawn: tuple[str, ...] = ("sphere2500", "torus3D", "manhattan", "intel")
    """Graphs whose poses are drawn before and after."""


class Synchronize(Experiment[SynchronizeConfig]):
    """One cell for each graph."""

    name = "synchronize"
    title = "Synchronisation: certified poses of SLAM graphs"
    paper = (
        "Synchronisation of rotations is among the problems of optimisation with orthogonal "
        "matrices that the introduction names (Sec. 1). The paper gives no number; the optima "
        "beside ours are SE-Sync's (Rosen et al., 2019, Tables 1 and 2)."
    )
    preset_help = (
        '"quick" takes seconds and needs no file, "paper" a quarter of an hour and the pose graphs.'
    )
    presets: Mapping[str, SynchronizeConfig] = {
        "quick": SynchronizeConfig(graphs=("sphere-8", "sphere-12"), drawn=("sphere-12",)),
        "paper": SynchronizeConfig(),
    }

    def environment(self, config: SynchronizeConfig) -> dict[str, str]:
        """The rival's version."""
        from importlib.metadata import version

        return {"gtsam": version("gtsam") if has_gtsam() else "not installed"}

    def cells(self, config: SynchronizeConfig) -> Sequence[str]:
        """The graphs."""
        return config.graphs

    @one_thread()
    def run_cell(self, config: SynchronizeConfig, cell: str, run: Run) -> dict[str, Any]:
        """Solve for poses and for rotations only, by us and by GTSAM."""
        graph = load(cell)
        _compile()
        began = time.process_time()
        poses = synchronize(graph, tol=config.tol)
        run.time(cell, "poses", time.process_time() - began)
        assert poses.translations is not None
        began = time.process_time()
        only = average_rotations(
            graph.edges, graph.rotations, graph.rotation_weights, tol=config.tol
        )
        run.time(cell, "rotations", time.process_time() - began)
        if has_gtsam():
            _time_gtsam(run, cell, graph, config.limit)
        result: dict[str, Any] = {
            "n": graph.n,
            "m": len(graph.edges),
            "d": graph.d,
            "value": poses.value,
            "recomputed": objective(graph, poses.rotations, poses.translations),
            "bound": poses.bound,
            "gap": poses.gap,
            "certified": poses.certified,
            "rank": poses.sdp.rank,
            "history": [[s.value, s.bound] for s in poses.sdp.history if np.isfinite(s.bound)],
            "rotations": {"value": only.value, "gap": only.gap, "certified": only.certified},
            "optimum": known()["pose_graphs"].get(cell, {}).get("optimum"),
        }
        if cell in config.drawn:
            # Both paths begin at the origin, in the frame of the first pose.
            after = poses.translations @ poses.rotations[0]
            result["before"], result["after"] = packed(dead_reckoning(graph)), packed(after)
        return result

    def summarise(
        self, config: SynchronizeConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """The results of all cells, by graph."""
        return {"tol": config.tol, "limit": config.limit, "graphs": dict(cells)}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """The number of certified graphs, and the agreement with printed optima."""
        return verdict_of(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of the graphs and of the times."""
        return tables_of(results, timing)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figures of some paths before and after, and of the gaps."""

        def paths(canvas: "Canvas") -> None:
            draw_paths(canvas, results)

        def gaps(canvas: "Canvas") -> None:
            draw_gaps(canvas, results)

        caption = "Relative distance between objective and proven bound at each check."
        found = [Figure("gaps", caption, gaps)]
        drawn = sum("before" in g for g in results["graphs"].values())
        if drawn:
            caption = (
                "Positions before (measurements added up along a tree, above) and after "
                "synchronisation (below), joined in the order of the file."
            )
            found.insert(0, Figure("paths", caption, paths, (2.6 * max(drawn, 2), 5.4)))
        return found


def _compile() -> None:
    """Let numba load or compile the loops before the clock starts."""
    for d in (2, 3):
        average_rotations([[0, 1], [1, 2], [2, 0]], np.tile(np.eye(d), (3, 1, 1)))


def _time_gtsam(run: Run, cell: str, graph: PoseGraph, limit: int) -> None:
    start = synchronize(graph, max_steps=1)  # one step from its chordal start
    assert start.translations is not None
    for method in METHODS:
        found = solve(method, graph, start.rotations, start.translations, limit)
        run.time(cell, f"{method} solved", float(found is not None))
        if found is not None:
            run.time(cell, method, found["seconds"])
            R, t = found["R"], found["t"]
            value = rotation_objective(graph, R) if method == SHONAN else objective(graph, R, t)
            run.time(cell, f"{method} value", value)


def rotation_objective(graph: PoseGraph, R: Array) -> float:
    """The chordal objective of rotations without positions."""
    i, j = graph.edges.T
    turned = ((R[j] - R[i] @ graph.rotations) ** 2).sum(axis=(1, 2))
    return float(graph.rotation_weights @ turned)
