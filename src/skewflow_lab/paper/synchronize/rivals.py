"""GTSAM on the same graphs, in a separate process with a limit of processor time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # the other process does not import torch
    from skewflow.problems import PoseGraph

Array = NDArray[np.float64]
FROM_OURS, OWN_START, SHONAN = METHODS = (
    "levenberg-marquardt",
    "levenberg-marquardt, own start",
    "shonan",
)


def has_gtsam() -> bool:
    """Whether GTSAM is installed."""
    return find_spec("gtsam") is not None


def solve(method: str, graph: PoseGraph, R: Array, t: Array, limit: int) -> dict[str, Any] | None:
    """The seconds, rotations and positions of a run from this start; None if it fails.

    Args:
        method: One of `METHODS`. Levenberg-Marquardt minimises squared angles and distances with
            the weights of the chordal objective to second order, from the start given here or from
            GTSAM's own, which its seconds include. Shonan averages rotations only.
        graph: The measurements.
        R: Initial rotations.
        t: Initial positions.
        limit: Limit of processor time in seconds.
    """
    assert graph.translations is not None and graph.translation_weights is not None
    with tempfile.TemporaryDirectory() as folder:
        asked, found = Path(folder) / "asked.npz", Path(folder) / "found.npz"
        np.savez(
            asked, edges=graph.edges, rotations=graph.rotations, translations=graph.translations,
            kappa=graph.rotation_weights, tau=graph.translation_weights, R=R, t=t, limit=limit,
        )  # fmt: skip
        command = [sys.executable, __file__, method, str(asked), str(found)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not found.exists():
            return None
        with np.load(found) as file:
            return {"R": file["R"], "t": file["t"], **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """Solve in this process."""
    import resource

    method, asked, found = sys.argv[1:]
    with np.load(asked) as file:
        given = dict(file)
    limit = int(given["limit"])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    if method == SHONAN:
        seconds, R, t = _shonan(given)
    else:
        seconds, R, t = _marquardt(given, own_start=method == OWN_START)
    np.savez(found, R=R, t=t)
    print(json.dumps({"seconds": seconds}))


def _marquardt(given: dict[str, Array], own_start: bool) -> tuple[float, Array, Array]:
    import gtsam

    d = given["R"].shape[-1]
    rotation, pose = (gtsam.Rot2, gtsam.Pose2) if d == 2 else (gtsam.Rot3, gtsam.Pose3)
    factor = gtsam.BetweenFactorPose2 if d == 2 else gtsam.BetweenFactorPose3

    def made(Q: Array, q: Array) -> Any:
        return pose(rotation(np.arctan2(Q[1, 0], Q[0, 0])) if d == 2 else rotation(Q), q)

    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    for i, (Q, q) in enumerate(zip(given["R"], given["t"], strict=True)):
        values.insert(i, made(Q, q))
    rows = zip(
        *(given[k] for k in ("edges", "rotations", "translations", "kappa", "tau")), strict=True
    )
    for (i, j), Q, q, kappa, tau in rows:
        # |exp(A) - I|_F² is 2 |a|² to second order, for the angles a.
        angles, moves = [2 * kappa] * (1 if d == 2 else 3), [tau] * d
        precisions = np.array(moves + angles if d == 2 else angles + moves)
        noise = gtsam.noiseModel.Diagonal.Precisions(precisions)
        graph.add(factor(int(i), int(j), made(Q, q), noise))
    sure = gtsam.noiseModel.Isotropic.Precision(3 if d == 2 else 6, 1e6)
    prior = gtsam.PriorFactorPose2 if d == 2 else gtsam.PriorFactorPose3
    graph.add(prior(0, made(given["R"][0], given["t"][0]), sure))
    began = time.process_time()
    if own_start:
        values = (gtsam.lago if d == 2 else gtsam.InitializePose3).initialize(graph)
    result = gtsam.LevenbergMarquardtOptimizer(graph, values).optimize()
    seconds = time.process_time() - began
    at = result.atPose2 if d == 2 else result.atPose3
    poses = [at(i) for i in range(len(given["R"]))]
    R = np.array([p.rotation().matrix() for p in poses])
    return seconds, R, np.array([p.translation() for p in poses])


def _shonan(given: dict[str, Array]) -> tuple[float, Array, Array]:
    import gtsam

    d = given["R"].shape[-1]
    marquardt = gtsam.LevenbergMarquardtParams.CeresDefaults()
    rows = zip(given["edges"], given["rotations"], given["kappa"], strict=True)
    measured = []
    for (i, j), Q, kappa in rows:
        noise = gtsam.noiseModel.Isotropic.Precision(3, kappa)
        if d == 2:  # in the plane it takes poses, and reads their rotations
            turn = gtsam.Pose2(0.0, 0.0, np.arctan2(Q[1, 0], Q[0, 0]))
            measured.append(gtsam.BetweenFactorPose2(int(i), int(j), turn, noise))
        else:
            measured.append(gtsam.BinaryMeasurementRot3(int(i), int(j), gtsam.Rot3(Q), noise))
    if d == 2:
        params = gtsam.ShonanAveragingParameters2(marquardt)
        averaging = gtsam.ShonanAveraging2(measured, params)
    else:
        params = gtsam.ShonanAveragingParameters3(marquardt)
        averaging = gtsam.ShonanAveraging3(measured, params)
    start = averaging.initializeRandomly()
    began = time.process_time()
    result, _ = averaging.run(start, d, 10)
    seconds = time.process_time() - began
    at = result.atRot2 if d == 2 else result.atRot3
    return seconds, np.array([at(i).matrix() for i in range(len(given["R"]))]), given["t"]


if __name__ == "__main__":
    main()
