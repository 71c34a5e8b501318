"""The assignment experiment: its verdict and the files it reads."""

import copy

import numpy as np
import pytest

from skewflow_lab.data import instance_names, load_instance
from skewflow_lab.data.qaplib import Assignment
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.qaplib import METHODS, _gap
from skewflow_lab.runs.files import RunError

EXPERIMENT = EXPERIMENTS["qaplib"]


def test_a_planted_instance_has_its_best_cost_and_no_less():
    task = load_instance("planted", "planted8")
    rng = np.random.default_rng(0)
    assert all(_gap(task, rng.permutation(8)) > 0 for _ in range(20))


def test_a_gap_is_computed_from_the_permutation_and_refuses_others():
    task = Assignment("two", np.array([[0.0, 3], [1, 0]]), np.array([[0.0, 5], [7, 0]]), 22)
    assert _gap(task, np.array([0, 1])) == 0
    assert _gap(task, np.array([1, 0])) == (21 + 5 - 22) / 22
    with pytest.raises(AssertionError, match="not a permutation"):
        _gap(task, np.array([0, 0]))


def test_the_verdict_follows_the_numbers():
    def row(name, flow, faq):
        gaps = dict.fromkeys(METHODS, faq) | {"flow": flow}
        return {"rows": 4, "best": 10, "gaps": gaps, "name": name}

    def summary(flow, faq):
        config = EXPERIMENT.presets["quick"]
        return EXPERIMENT.summarise(config, {str(n): row(str(n), flow, faq) for n in range(3)})

    better, worse = EXPERIMENT.verdict(summary(0.01, 0.02)), EXPERIMENT.verdict(summary(0.03, 0.02))
    assert "is 1.000% (50% of FAQ's; not above" in better
    assert "(150% of FAQ's; above" in worse
    assert "ours) 3, FAQ 0" in EXPERIMENT.verdict(summary(0.0, 0.02))


def test_the_table_of_equal_times_comes_from_the_clocks():
    gaps = dict.fromkeys(METHODS, 0.5)
    cell = {"rows": 4, "best": 10, "gaps": gaps}
    results = EXPERIMENT.summarise(EXPERIMENT.presets["quick"], {"a": cell})
    clocks = {"a": {"faq timed gap": 0.25, "faq timed restarts": 9.0}}
    timed = EXPERIMENT.tables(copy.deepcopy(results), clocks)[1]
    assert timed.rows[1] == ("FAQ", 1, 0.25, 0.25, 0, 9.0)


def test_files_of_qaplib_are_read_and_checked(tmp_path, monkeypatch):
    folder = tmp_path / "qaplib"
    folder.mkdir()
    monkeypatch.setenv("SKEWFLOW_DATA", str(tmp_path))
    with pytest.raises(RunError, match="use --data planted"):
        instance_names("qaplib")
    (folder / "best_known.csv").write_text("instance,n,value_of_permutation\nb,3,4\na,2,22\n")
    assert instance_names("qaplib") == ("a", "b")
    (folder / "a.dat").write_text("2\n0 3 1 0\n0 5 7 0\n")
    task = load_instance("qaplib", "a")
    assert task.best == 22 and task.B[1, 0] == 7
    (folder / "b.dat").write_text("3\n0 3 1\n")
    with pytest.raises(RunError, match="damaged"):
        load_instance("qaplib", "b")
    with pytest.raises(RunError, match="names of qaplib: got 'c'"):
        load_instance("qaplib", "c")
