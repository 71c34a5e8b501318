"""Poses against noise-free truths, dense eigenvalues and the residuals; g2o files."""

import gzip

import numpy as np
import pytest
import torch

from helpers import assert_close
from skewflow.errors import NonFiniteError, ShapeError
from skewflow.problems import PoseGraph, average_rotations, read_g2o, synchronize
from skewflow.problems.block_sdp.cost import block_diagonal
from skewflow.problems.synchronize.cost import EliminatedCost
from skewflow.problems.synchronize.rounding import nearest_rotations
from skewflow.problems.synchronize.solve import residuals


def noisy_graph(n=12, d=3, noise=0.05, seed=0, extra=16):
    """A ring of random poses with some chords: the graph, its rotations and positions."""
    draw = np.random.default_rng(seed)
    R = nearest_rotations(draw.standard_normal((n, d, d)))
    t = draw.standard_normal((n, d))
    ring = np.stack([np.arange(n), (np.arange(n) + 1) % n], axis=1)
    chords = np.stack([draw.choice(n, 2, replace=False) for _ in range(extra)])
    edges = np.concatenate([ring, chords])
    i, j = edges.T
    shaken = np.eye(d) + noise * draw.standard_normal((len(edges), d, d))
    measured = nearest_rotations(R[i].mT @ R[j] @ shaken)
    moved = (R[i].mT @ (t[j] - t[i])[..., None])[..., 0]
    moved += noise * draw.standard_normal(moved.shape)
    weights = draw.uniform(0.5, 2, (2, len(edges)))
    return PoseGraph(edges, measured, moved, weights[0], weights[1]), R, t


@pytest.mark.parametrize("d", [2, 3])
def test_measurements_without_noise_give_the_poses_back(d):
    graph, R, t = noisy_graph(d=d, noise=0.0)
    poses = synchronize(graph)
    # The objective is quadratic in the error, so its gap of 1e-14 leaves 1e-7: factor 1e6.
    assert_close("R", R[0].T @ R, poses.rotations[0].T @ poses.rotations, factor=1e6)
    assert_close("t", (t - t[0]) @ R[0], poses.translations @ poses.rotations[0], factor=1e6)
    assert -1e-9 < poses.bound <= poses.value < 1e-12


@pytest.mark.parametrize("d", [2, 3])
def test_noisy_poses_are_certified_and_their_value_is_the_objective(d):
    graph, _, _ = noisy_graph(d=d)
    poses = synchronize(graph)
    assert poses.certified
    assert poses.bound <= poses.value <= poses.bound * (1 + 1e-5)
    assert_close(
        "rotations", np.broadcast_to(np.eye(d), (12, d, d)), poses.rotations @ poses.rotations.mT
    )
    total = 0.0
    for k, (i, j) in enumerate(graph.edges):
        Ri, Rj = poses.rotations[i], poses.rotations[j]
        ti, tj = poses.translations[i], poses.translations[j]
        total += graph.rotation_weights[k] * ((Rj - Ri @ graph.rotations[k]) ** 2).sum()
        shift = tj - ti - Ri @ graph.translations[k]
        total += graph.translation_weights[k] * (shift**2).sum()
    assert_close("value", total, poses.value, factor=10)  # summed in another order


def test_a_long_way_with_few_loops_is_certified():
    """The positions are so far apart that rounding errors bound by the textbook are too large."""
    n, radius = 800, 100.0
    draw = np.random.default_rng(0)
    angles = 2 * np.pi * np.arange(n) / n
    R = np.moveaxis(
        np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]]), 2, 0
    )
    t = radius * R[:, :, 0]
    i = np.arange(n)
    j = (i + 1) % n
    shaken = nearest_rotations(np.eye(2) + 1e-3 * draw.standard_normal((n, 2, 2)))
    moved = (R[i].mT @ (t[j] - t[i])[..., None])[..., 0] + 0.05 * draw.standard_normal((n, 2))
    weights = np.array([1e6, 400.0])[:, None].repeat(n, axis=1)
    graph = PoseGraph(np.stack([i, j], 1), R[i].mT @ R[j] @ shaken, moved, weights[0], weights[1])
    poses = synchronize(graph, tol=1e-4)
    assert poses.certified and poses.gap <= 1e-4 and poses.sdp.rank == 2
    cost = EliminatedCost(graph, np.ones(n))
    blocks = poses.sdp.multipliers
    loose = [cost.shifted(s * np.eye(2) - blocks) for s in 10.0 ** np.arange(-9, 3)]
    assert max(s.bound for s in loose if s is not None) < poses.bound


def test_bound_agrees_with_dense_eigenvalues_of_the_eliminated_cost():
    graph, _, _ = noisy_graph(n=6, noise=0.1, extra=5)
    cost = EliminatedCost(graph, np.ones(len(graph.edges)))
    Q = cost.apply(np.eye(18).reshape(6, 3, 18)).reshape(18, 18)
    assert_close("symmetric", Q, Q.T)
    poses = synchronize(graph)
    S = Q - block_diagonal(poses.sdp.multipliers).toarray()
    dual = poses.sdp.value + 18 * min(np.linalg.eigvalsh(S)[0], 0)
    assert poses.bound <= dual + 1e-9
    assert poses.value - dual <= 1e-5 * poses.value


def test_the_best_translations_are_eliminated():
    graph, R, _ = noisy_graph(noise=0.3)
    cost = EliminatedCost(graph, np.ones(len(graph.edges)))
    t = cost.translations(np.ascontiguousarray(R.mT))
    least = residuals(graph, R, t).sum()
    Y = np.ascontiguousarray(R.mT)
    assert_close("Q", least, np.vdot(Y, cost.apply(Y)), factor=100)  # cancellation in the product
    for seed in range(3):
        other = t + 1e-3 * np.random.default_rng(seed).standard_normal(t.shape)
        assert residuals(graph, R, other).sum() > least


def test_shifted_solves_with_the_shifted_matrix():
    graph, _, _ = noisy_graph()
    cost = EliminatedCost(graph, np.ones(len(graph.edges)))
    D = np.tile(0.5 * np.eye(3), (12, 1, 1))
    V = np.random.default_rng(0).standard_normal((12, 3, 2))
    X = cost.shifted(D).solve(V)
    assert_close("solve", V, cost.apply(X) + 0.5 * X, factor=10)  # condition of Q + D


def test_averaged_rotations_are_certified_from_any_start():
    graph, R, _ = noisy_graph(n=20, noise=0.1, extra=30)
    start = nearest_rotations(np.random.default_rng(9).standard_normal((20, 3, 3)))
    values = []
    for initial in (None, start, R):
        result = average_rotations(
            graph.edges, graph.rotations, graph.rotation_weights, initial=initial
        )
        assert result.certified
        values.append(result.value)
    assert max(values) <= min(values) * (1 + 1e-5)


def test_poses_are_certified_by_the_gap_to_their_value_and_not_to_their_weights():
    graph, _, _ = noisy_graph(n=6, noise=0.3, extra=6)
    weights = np.array([1e12, *np.ones(11)])
    result = average_rotations(graph.edges, graph.rotations, weights)
    assert result.certified == (result.gap <= 1e-5)
    exact, _, _ = noisy_graph(noise=0.0)
    assert synchronize(exact).certified  # value and bound are zero up to rounding


def test_a_robust_loss_rejects_false_measurements():
    graph, R, _ = noisy_graph(n=20, noise=0.01, extra=60)
    wrong = np.random.default_rng(1).choice(np.arange(20, 80), 10, replace=False)
    measured = graph.rotations.copy()
    measured[wrong] = nearest_rotations(np.random.default_rng(2).standard_normal((10, 3, 3)))
    plain = average_rotations(graph.edges, measured)
    robust = average_rotations(graph.edges, measured, loss=lambda e: e)
    truth = R[0].T @ R

    def error(result):
        return np.abs(result.rotations[0].T @ result.rotations - truth).max()

    assert error(robust) < 0.05 < error(plain)
    assert robust.weights[wrong].max() < 0.1 * np.median(robust.weights)
    assert not robust.certified


def test_g2o_files_give_their_measurements(tmp_path):
    text = (
        "VERTEX_SE2 5 0 0 0\nVERTEX_SE2 7 1 0 0\n\n"
        "EDGE_SE2 5 7 1 2 0.5 2 0 0 2 0 9\nFIX 5\nEDGE_SE2 7 9 0 1 0 4 1 0 4 0 1\n"
    )
    (tmp_path / "a.g2o").write_text(text)
    with gzip.open(tmp_path / "b.g2o.gz", "wt") as file:
        file.write(text)
    for name in ("a.g2o", "b.g2o.gz"):
        graph = read_g2o(tmp_path / name)
        assert graph.edges.tolist() == [[0, 1], [1, 2]]
        assert graph.labels.tolist() == [5, 7, 9]
        assert_close("t", np.array([[1.0, 2], [0, 1]]), graph.translations)
        assert_close("kappa", np.array([9.0, 1]), graph.rotation_weights)
        assert_close("tau", np.array([2.0, 3.75]), graph.translation_weights)
        assert_close("angle", np.cos(0.5), graph.rotations[0, 0, 0])


UPPER = "1 0 0 0 0 0 1 0 0 0 0 1 0 0 0 2 0 0 2 0 2"
"""The upper half of an information matrix in space."""


def test_g2o_files_in_space_turn_the_right_way(tmp_path):
    half = np.sqrt(0.5)
    (tmp_path / "a.g2o").write_text(f"EDGE_SE3:QUAT 0 1 1 2 3 0 0 {half} {half} {UPPER}\n")
    graph = read_g2o(tmp_path / "a.g2o")
    assert_close("R", np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), graph.rotations[0])
    assert_close("kappa", 1.0, graph.rotation_weights[0])
    assert_close("tau", 1.0, graph.translation_weights[0])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "text, message",
    [
        ("EDGE_SE2 0 1 1 0 0 1 0 0 1 0", "line 1: EDGE_SE2 must have 11 numbers: got 10"),
        ("\nLANDMARK 0 1\n", "line 2: unknown tag 'LANDMARK'"),
        ("EDGE_SE2 0 1 1 0 x 1 0 0 1 0 1", "line 1: could not convert"),
        ("EDGE_SE2 0 1 1 0 nan 1 0 0 1 0 1", "must be finite"),
        ("EDGE_SE2 0 1 1 0 0 1 0 0 1 0 -1", "positive definite"),
        ("EDGE_SE2 0 1 1 0 0 0 0 0 0 0 1", "cannot be inverted"),
        ("EDGE_SE2 0 1 1 0 0 1 0 0 -3 0 1", "positive definite"),
        ("EDGE_SE2 0.5 1 1 0 0 1 0 0 1 0 1", "whole number: got '0.5'"),
        ("EDGE_SE3:QUAT 0 1" + " 0" * 7 + " " + UPPER, "quaternion must have a length"),
        ("VERTEX_SE2 0 0 0 0\n", "at least one EDGE line"),
        ("EDGE_SE2 0 1 1 0 0 1 0 0 1 0 1\nEDGE_SE2 2 3 1 0 0 1 0 0 1 0 1", "it has 2 parts"),
        ("EDGE_SE2 0 0 1 0 0 1 0 0 1 0 1", "must join two poses"),
    ],
)
def test_bad_g2o_files_are_refused(tmp_path, text, message):
    (tmp_path / "a.g2o").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_g2o(tmp_path / "a.g2o")


@pytest.mark.bad_input
def test_a_gzip_file_cut_short_is_refused(tmp_path):
    packed = gzip.compress(b"EDGE_SE2 0 1 1 0 0 1 0 0 1 0 1\n" * 50)
    (tmp_path / "a.g2o.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match="damaged or cut short"):
        read_g2o(tmp_path / "a.g2o.gz")


@pytest.mark.bad_input
def test_a_gzip_file_with_a_damaged_byte_is_refused(tmp_path):
    packed = bytearray(gzip.compress(b"EDGE_SE2 0 1 1 0 0 1 0 0 1 0 1\n" * 50))
    packed[14] ^= 255
    (tmp_path / "a.g2o.gz").write_bytes(packed)
    with pytest.raises(ValueError, match="damaged or cut short"):
        read_g2o(tmp_path / "a.g2o.gz")


def test_numbers_of_poses_beyond_the_precision_of_floats_stay_apart(tmp_path):
    first = 2**60
    (tmp_path / "a.g2o").write_text(f"EDGE_SE2 {first} {first + 1} 1 0 0 1 0 0 1 0 1\n")
    assert read_g2o(tmp_path / "a.g2o").labels.tolist() == [first, first + 1]


def test_a_pose_graph_takes_lists():
    graph = PoseGraph([[0.0, 1]], [[[1, 0], [0, 1]]], [[1, 0]], [1], [2])
    assert_close("t", 1.0, np.linalg.norm(synchronize(graph).translations[1]))


def test_rotations_may_be_tensors():
    R = torch.eye(3).expand(3, 3, 3)
    edges = torch.tensor([[0, 1], [1, 2], [2, 0]])
    result = average_rotations(edges, R, torch.ones(3), initial=R)
    assert_close("R", np.eye(3), result.rotations[0].T @ result.rotations[1])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "options, words",
    [
        ({"tol": np.nan}, "`tol` must be a positive number"),
        ({"tol": "x"}, "`tol` must be a positive number"),
        ({"max_steps": 1.5}, "`max_steps` must be a whole number"),
        ({"initial": np.full((2, 3, 3), np.nan)}, "`initial` must be finite"),
        ({"loss": lambda e: 0 * e}, "it is flat at all of the present residuals"),
        ({"loss": lambda e: e.detach()}, "`loss` must be .* got Tensor without a derivative"),
        ({"weights": [1e200]}, "`rotation_weights` must have a largest number between"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        average_rotations([[0, 1]], np.eye(3)[None], **options)


@pytest.mark.bad_input
def test_bad_measurements_are_refused():
    eye = np.eye(3)[None]
    with pytest.raises(ShapeError, match="at least one measurement"):
        average_rotations(np.zeros((0, 2)), np.zeros((0, 3, 3)))
    with pytest.raises(ShapeError, match=r"`rotation_weights` must have shape \(1,\)"):
        average_rotations([[0, 1]], eye, [1.0, 2.0])
    with pytest.raises(NonFiniteError, match="rotation_weights"):
        average_rotations([[0, 1]], eye, [np.nan])
    with pytest.raises(ValueError, match="must be positive"):
        average_rotations([[0, 1]], eye, [0.0])
    with pytest.raises(ValueError, match="rotation matrices"):
        average_rotations([[0, 1]], 2 * eye)
    with pytest.raises(ValueError, match="determinant 1: 1 of them have -1"):
        average_rotations([[0, 1]], -eye)
    with pytest.raises(ValueError, match="`edges` must hold the numbers"):
        average_rotations([[0.5, 1.7]], eye)
    with pytest.raises(ShapeError, match="or neither of them"):
        PoseGraph([[0, 1]], eye, np.zeros((1, 3)), [1.0], None)
    with pytest.raises(ValueError, match="it has 2 parts"):
        average_rotations([[0, 1], [2, 3]], np.concatenate([eye, eye]))
    with pytest.raises(ValueError, match="`loss` must be finite"):
        average_rotations([[0, 1]], eye, loss=lambda e: -e)
    with pytest.raises(ValueError, match="`initial` must have shape"):
        average_rotations([[0, 1]], eye, initial=eye)
