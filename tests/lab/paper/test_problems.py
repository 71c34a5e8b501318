"""The experiments on max-cut and synchronisation: their checks, their files, their verdicts."""

import gzip
from dataclasses import replace

import networkx
import numpy as np
import pytest

from helpers import assert_close
from skewflow_lab.data.graphs import graph_file, known
from skewflow_lab.paper.max_cut import graphs as cuts
from skewflow_lab.paper.max_cut import report as cut_report
from skewflow_lab.paper.synchronize import graphs as poses
from skewflow_lab.paper.synchronize import report as pose_report
from skewflow_lab.runs.files import RunError


@pytest.mark.parametrize("name", ["grid-5", "random-30"])
def test_the_weight_of_a_cut_is_that_of_networkx(name):
    n, edges = cuts.load(name)
    graph = networkx.Graph()
    graph.add_weighted_edges_from((int(i), int(j), w) for i, j, w in edges)
    side = np.random.default_rng(0).random(n) < 0.5
    one = set(np.flatnonzero(side).tolist())
    assert cuts.cut_weight(edges, side) == networkx.cut_size(graph, one, weight="weight")


def test_dead_reckoning_finds_the_positions_without_noise():
    graph = poses.load("sphere-5")
    true = np.random.default_rng(0).standard_normal((graph.n, 3))
    R = poses.rotations(np.random.default_rng(1).standard_normal((graph.n, 3, 3)))
    R[np.linalg.det(R) < 0] *= -1
    i, j = graph.edges.T
    moved = (R[i].mT @ (true[j] - true[i])[..., None])[..., 0]
    graph = replace(graph, rotations=R[i].mT @ R[j], translations=moved)
    found = poses.dead_reckoning(graph)
    assert_close("positions", (true - true[0]) @ R[0], found, factor=10)  # a sum along a path
    assert poses.objective(graph, R, true) < 1e-20


def test_packed_positions_come_back_to_five_digits():
    t = np.random.default_rng(0).standard_normal((50, 3)) * 100
    record = poses.packed(t)
    assert np.abs(poses.unpacked(record) - t).max() <= record["size"] / 65535


def cut_results(**changes):
    graph = {"gap": 5e-7, "relaxation": 12083.1977, "bound": 12083.2, "listed": "12083.2"}
    graph |= {"cut": 11624, "recomputed": 11624, "best": 11624, **changes}
    return {"graphs": {"G1": graph}, "tol": 1e-6}


def test_the_verdict_of_max_cut_follows_the_numbers():
    text = cut_report.verdict_of(cut_results())
    assert "1 of 1 bounds lie within" in text and "1 of 1 listed relaxations agree" in text
    assert "every cut does" in text and "on average 1.0000 of the best known" in text
    text = cut_report.verdict_of(cut_results(relaxation=12083.1, bound=12083.11))
    assert "0 of 1 listed" in text and "12083.1100 excludes the listed value" in text
    assert "allows both" in cut_report.verdict_of(cut_results(relaxation=12083.1))
    assert "0 of 1 bounds" in cut_report.verdict_of(cut_results(gap=2e-4))
    assert "cuts of G1 do not" in cut_report.verdict_of(cut_results(recomputed=11623))
    assert "the worst 0.5000 (G1)" in cut_report.verdict_of(cut_results(cut=5812))


def pose_results(**changes):
    graph = {"gap": 5e-6, "certified": True, "value": 717.126, "bound": 717.12}
    graph |= {"recomputed": 717.126, "optimum": "7.171e2", "rotations": {"certified": True}}
    return {"graphs": {"cubicle": {**graph, **changes}}, "tol": 1e-5}


def test_the_verdict_of_synchronize_follows_the_numbers():
    text = pose_report.verdict_of(pose_results())
    assert "1 of 1 pose graphs are certified" in text and "1 of 1 printed optima agree" in text
    text = pose_report.verdict_of(pose_results(certified=False, gap=0.5))
    assert "Not certified: cubicle (gap 5.0e-01)." in text
    text = pose_report.verdict_of(pose_results(optimum="7.172e2"))
    assert "0 of 1 printed" in text and "cubicle is printed as 7.172e2, ours is 717.13" in text
    assert "agree to 1e-01" in pose_report.verdict_of(pose_results(recomputed=717.126 * 1.1))


def test_files_of_graphs_are_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWFLOW_DATA", str(tmp_path))
    with pytest.raises(RunError, match="no graph of gset"):
        graph_file("gset", "G68")
    with pytest.raises(RunError, match="SKEWFLOW_DATA"):
        graph_file("gset", "G1")
    (tmp_path / "gset").mkdir()
    (tmp_path / "gset/G1.gz").write_bytes(gzip.compress(b"800 19176\n"))
    with pytest.raises(RunError, match="another SHA-256"):
        graph_file("gset", "G1")
    (tmp_path / "gset/G1.gz").write_bytes(gzip.compress(b"800 19176\n" * 9)[:25])
    with pytest.raises(RunError, match="complete file"):
        graph_file("gset", "G1")
    for name in ("grid-2", "circle-9"):
        with pytest.raises(RunError, match="is not a graph"):
            cuts.load(name)
    with pytest.raises(RunError, match="is not a pose graph"):
        poses.load("sphere-2")


def test_known_values_cover_both_sets():
    assert len(known()["gset"]) == 71 and len(known()["pose_graphs"]) == 16
    assert sum(g["relaxation"] is not None for g in known()["gset"].values()) == 24
    assert sum(g["optimum"] is not None for g in known()["pose_graphs"].values()) == 9
