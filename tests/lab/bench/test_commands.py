"""The benchmarks of one question each: they run, print, and save where results are recorded."""

import csv
import json

import pytest
from torch import distributed

from skewflow_lab.bench import (
    edge_completion,
    factored,
    givens_layer,
    online_pca,
    processes,
    recurrence,
    rollouts,
    second_moment,
    sharded,
    two_commits,
    which_end,
)
from skewflow_lab.runs import files
from skewflow_lab.runs.files import RunError


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """The folder of recorded benchmarks in an empty checkout."""
    monkeypatch.setattr(files, "ROOT", tmp_path)
    folder = tmp_path / "results" / "bench"
    folder.mkdir(parents=True)
    return folder


def rows_of(folder):
    return list(csv.DictReader((folder / "results.csv").read_text().splitlines()))


def test_edge_completion_draws_without_the_trials_of_algorithm_1(saved, capsys):
    edge_completion.edge_completion(d=30, draws=20, rounds=2, save=True)
    (row,) = rows_of(saved)
    assert (row["benchmark"], row["case"], row["rounds"]) == (
        "edge_completion",
        "d=30 s=2 h=abs",
        "2",
    )
    assert "edge          1.0 trials" in capsys.readouterr().out
    assert row["threads"] == "1" and row["commit"] and row["device"]


def test_both_recurrences_are_timed(saved, monkeypatch):
    monkeypatch.setattr(recurrence, "CASES", ((3, 2, 4),))
    recurrence.recurrence(rounds=1, save=True)
    assert [row["unit"] for row in rows_of(saved)] == ["ms, plain loop", "ms, by hand"]


def test_two_processes_step_at_once(saved, monkeypatch):
    monkeypatch.setattr(processes, "CASES", ((8, 8, 1, 0),))
    processes.processes(rounds=1, save=True)
    single, together = rows_of(saved)
    assert float(single["p50"]) > 0 and float(together["p50"]) > 0


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
def test_the_bytes_of_sharded_steps_are_those_of_the_model(saved, monkeypatch):
    monkeypatch.setattr(sharded, "GPUS", 2)
    monkeypatch.setattr(sharded, "ROWS", 32)
    sharded.sharded(d=32, processes=(2,), rounds=1, save=True)
    found = json.loads((saved / "sharded.json").read_text())
    counted = {(row["step"], row["shape"][0]): row for row in found["rows"]}
    for row in found["model"][:-1]:
        seen = counted[row["step"], 32]["kB sent for a weight"]
        assert seen == pytest.approx(row["kB sent by a GPU"])
    gathered = counted["exact, gathered", 32]["kB sent for a weight"]
    assert gathered == pytest.approx(1.5 * found["model"][-1]["kB sent by a GPU"], rel=0.01)
    assert counted["exact", 128]["collectives"] == 3 and found["environment"]["commit"]


def test_factored_steps_are_timed_against_dense_ones(saved, monkeypatch):
    monkeypatch.setitem(factored.SHAPES, "cpu", [(32, 32)])
    monkeypatch.setitem(factored.LAYERS, "cpu", (32, 4))
    factored.factored(device="cpu", rounds=1, save=True)
    found = json.loads((saved / "factored_cpu.json").read_text())
    assert [row["rank"] for row in found["ranks"]] == [1, 2, 4, 8, 12, 16]
    assert found["layer"][0]["ratio"] > 0 and found["environment"]["commit"]


def test_layers_of_rotations_are_timed_weighed_and_trained(saved, monkeypatch):
    monkeypatch.setattr(givens_layer, "CASES", ((6, 3, 5),))
    monkeypatch.setattr(givens_layer, "SEEDS", (0,))
    names = ("GivensLinear, 16 rounds", "OrthogonalLinear, FlowAdam")
    classifiers = {name: givens_layer.CLASSIFIERS[name] for name in names}
    monkeypatch.setattr(givens_layer, "CLASSIFIERS", classifiers)
    monkeypatch.setattr(givens_layer, "default_images", lambda: "digits")
    givens_layer.givens_layer(rounds=1, steps=60, save=True)
    found = json.loads((saved / "givens_layer.json").read_text())
    assert {row["layer"] for row in found["costs"]} == set(givens_layer._layers(4, 1))
    assert all(row["extra bytes"] > 0 and row["milliseconds"] > 0 for row in found["costs"])
    accuracy = {row["layers"]: row["test accuracy"] for row in found["accuracy"]}
    assert set(accuracy) == set(names) and min(accuracy.values()) > 0.7


def test_the_second_moment_of_least_loss_is_found_for_every_problem(saved, monkeypatch):
    monkeypatch.setattr(second_moment, "LRS", [1e-3])
    second_moment.second_moment(steps=1, save=True)
    rows = json.loads((saved / "second_moment.json").read_text())["rows"]
    assert {(row["problem"], row["s"], row["moment"]) for row in rows} == {
        (problem, s, moment)
        for problem in second_moment.PROBLEMS
        for s in (2, "dense")
        for moment in second_moment.MOMENTS
    }


def test_the_end_that_wins_is_measured_and_drawn(saved, monkeypatch):
    monkeypatch.setattr(which_end, "SHAPES", {"cpu": [(32, 32)]})
    monkeypatch.setattr(which_end, "BATCHES", {"cpu": (4,)})
    monkeypatch.setattr(which_end, "PICTURE", saved / "which-end.png")
    which_end.which_end(device="cpu", save=True)
    (row,) = json.loads((saved / "which_end_cpu.json").read_text())["rows"]
    assert {"SGD", "exact", "passes", "gradient", "blocks of 2", "blocks of 16"} <= set(row)
    for device in ("cpu", "cuda"):
        (saved / f"which_end_{device}.json").write_bytes(
            (saved / "which_end_cpu.json").read_bytes()
        )
    monkeypatch.setattr(which_end, "SHAPES", {"cpu": [], "cuda": []})
    which_end.which_end(device="cpu", draw=True)
    assert (saved / "which-end.png").stat().st_size > 1000


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # pogo compiles with torch
def test_online_pca_is_timed_to_a_gap(saved, monkeypatch):
    pytest.importorskip("pogo")
    monkeypatch.setattr(online_pca, "LONGEST", 60.0)
    monkeypatch.setitem(online_pca.GAPS, "online-pca-1000", 0.9)
    monkeypatch.setattr(online_pca, "NAMES", ("auto", "pogo"))
    online_pca.online_pca(("online-pca-1000",), device="cpu", rounds=1, save=True)
    (row,) = json.loads((saved / "online_pca.json").read_text())["rows"]
    assert row["pogo / auto"] > 0 and row["auto"]["steps"] > 0


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["edge_completion", "recurrence", "processes", "online_pca"])
def test_no_rounds_and_no_checkout_are_refused_before_anything_runs(name, monkeypatch, tmp_path):
    command = getattr(globals()[name], name)
    with pytest.raises(RunError, match="--rounds must be at least 1: got 0"):
        command(rounds=0)
    monkeypatch.setattr(files, "ROOT", tmp_path)
    with pytest.raises(
        RunError, match=r"results/bench/results.csv of the repository.*not in a checkout"
    ):
        command(save=True)


def test_rollouts_without_their_simulators_say_what_to_install(monkeypatch):
    monkeypatch.setattr("skewflow_lab.rl.tasks.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"skewflow\[rl\]"):
        rollouts.rollouts()


def test_two_source_trees_are_timed_in_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(two_commits, "TURN", 1e-6)
    out = tmp_path / "ratios.json"
    two_commits.two_commits((files.ROOT, files.ROOT), turns=3, case=("polar/64",), out=out)
    found = json.loads(out.read_text())
    assert found["old"] == found["new"] and found["rows"][0]["ratio"] > 0
    with pytest.raises(RunError, match="--case must be some of s2/64.*: got s3/64"):
        two_commits.two_commits((files.ROOT, files.ROOT), case=("s3/64",))
