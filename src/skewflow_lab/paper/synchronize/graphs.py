"""Pose graphs from files, small generated ones, and their objective, rotations and positions."""

import base64
from typing import Any

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]
from numpy.typing import NDArray

from skewflow.geometry import project
from skewflow.problems import PoseGraph, read_g2o

from ...data.graphs import graph_file
from ...runs.files import RunError

Array = NDArray[np.float64]


def load(name: str) -> PoseGraph:
    """A pose graph by name: one of the files, or the generated "sphere-k" of k rings of k poses."""
    kind, _, size = name.partition("-")
    if kind == "sphere" and size.isdigit() and int(size) > 3:
        return _sphere(int(size))
    if kind in ("sphere", "ring") and size:
        raise RunError(f"{name!r} is not a pose graph: use the name of a file, or sphere-8.")
    return read_g2o(graph_file("pose_graphs", name))


def _sphere(k: int) -> PoseGraph:
    """A spiral of k rings on a sphere, with measurements along it and between its rings."""
    draw = np.random.default_rng(k)
    n = k * k
    turn, height = 2 * np.pi * np.arange(n) / k, np.linspace(-0.9, 0.9, n)
    t = 5 * np.stack([np.cos(turn), np.sin(turn), height / 0.44], axis=1)
    t[:, :2] *= np.sqrt(1 - height**2)[:, None]
    c, s, o = np.cos(turn), np.sin(turn), np.zeros(n)
    R = np.stack([c, -s, o, s, c, o, o, o, o + 1], axis=1).reshape(n, 3, 3)
    i = np.concatenate([np.arange(n - 1), np.arange(n - k)])
    j = np.concatenate([np.arange(1, n), np.arange(k, n)])
    shaken = np.eye(3) + 0.05 * draw.standard_normal((len(i), 3, 3))
    measured = rotations(R[i].mT @ R[j] @ shaken)
    moved = (R[i].mT @ (t[j] - t[i])[..., None])[..., 0]
    moved += 0.05 * draw.standard_normal(moved.shape)
    weights = np.full(len(i), 200.0)
    return PoseGraph(np.stack([i, j], axis=1), measured, moved, weights, weights)


def rotations(A: Array) -> Array:
    """The nearest rotations of matrices that are nearly rotations."""
    import torch

    return project(torch.from_numpy(A)).numpy()


def dead_reckoning(graph: PoseGraph) -> Array:
    """Positions (n, d) by adding measurements up along a breadth-first tree from the first pose."""
    assert graph.translations is not None
    i, j = graph.edges.T
    m, n, d = len(i), graph.n, graph.d
    number = sp.csr_array((np.arange(1, m + 1), (i, j)), shape=(n, n), dtype=np.int64)
    # A pair of poses may have several edges, of which any one serves.
    both: dict[tuple[int, int], tuple[int, bool]] = {}
    for e, (a, b) in enumerate(graph.edges.tolist()):
        both.setdefault((a, b), (e, False))
        both.setdefault((b, a), (e, True))
    order, before = sp.csgraph.breadth_first_order(number + number.T, 0, directed=False)
    R, t = np.tile(np.eye(d), (n, 1, 1)), np.zeros((n, d))
    for b in order[1:].tolist():
        a = int(before[b])
        e, back = both[a, b]
        Q, q = graph.rotations[e], graph.translations[e]
        if back:
            Q, q = Q.T, -Q.T @ q
        R[b], t[b] = R[a] @ Q, t[a] + R[a] @ q
    return t


def objective(graph: PoseGraph, R: Array, t: Array) -> float:
    """SE-Sync's objective, summed over measurements, as a check independent of the library."""
    assert graph.translations is not None and graph.translation_weights is not None
    total = 0.0
    for e, (i, j) in enumerate(graph.edges.tolist()):
        turned = R[j] - R[i] @ graph.rotations[e]
        moved = t[j] - t[i] - R[i] @ graph.translations[e]
        total += graph.rotation_weights[e] * float((turned**2).sum())
        total += graph.translation_weights[e] * float((moved**2).sum())
    return total


def packed(t: Array) -> dict[str, Any]:
    """Positions as text, with two bytes a coordinate, scaled to the larger side of their box."""
    low, size = t.min(axis=0), float(np.ptp(t, axis=0).max()) or 1.0
    steps = np.round((t - low) / size * 65535).astype("<u2")
    text = base64.b64encode(steps.tobytes()).decode()
    return {"low": low.tolist(), "size": size, "steps": text}


def unpacked(record: dict[str, Any]) -> Array:
    """The positions that `packed` stored."""
    low = np.array(record["low"])
    steps = np.frombuffer(base64.b64decode(record["steps"]), "<u2").reshape(-1, len(low))
    return low + steps / 65535 * record["size"]
