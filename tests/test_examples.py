"""The examples run and do what they print."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(name, capsys):
    """The numbers of each line that an example prints."""
    load(name).main()
    lines = capsys.readouterr().out.replace("%", "").splitlines()
    return [[float(x) for x in re.findall(r"\d+\.?\d*(?:e[+-]\d+)?", line)] for line in lines]


def test_the_quickstart_reaches_the_known_answer_from_its_command_line():
    words = [sys.executable, EXAMPLES / "quickstart.py"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # small matrices gain nothing from threads
    out = subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["2", "8", "64"]
    for row in rows:
        assert float(row[3]) > 1 > 1e-4 > float(row[5])
        assert float(row[6]) < 1e-10


def test_the_quickstart_works_at_every_end_of_the_dial():
    quickstart = load("quickstart")
    for s, num_steps in ((2, 600), (5, 250), (16, 60)):
        distances, _ = quickstart.run(d=16, block_size=s, num_steps=num_steps)
        assert distances[-1] < 1e-2 < 1 < distances[0]


def test_the_deep_network_learns_the_spirals(capsys):
    (before, after), (error,) = printed("layer", capsys)
    assert before < 60
    assert after > 95
    assert error < 1e-5


def test_the_recurrent_net_remembers(capsys):
    (_, before, after), (error,) = printed("rnn", capsys)
    assert before < 40
    assert after > 95
    assert error < 1e-5


def test_the_black_box_fit_ignores_the_outliers(capsys):
    (before, after), (error,) = printed("black_box", capsys)
    assert after < before / 2
    assert error < 1e-5


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_enough_to_copy(path):
    assert len(path.read_text().splitlines()) < 60


def test_the_poses_on_a_ring_are_proven_optimal(capsys):
    (value, bound), (error, _) = printed("poses", capsys)
    assert bound <= value <= bound * (1 + 1e-5)
    assert error < 1


def test_the_assignment_finds_the_names_and_lowers_the_cost(capsys):
    (differ,), (before, after) = printed("assignment", capsys)
    assert differ == 0
    assert after < 0.75 * before


def test_the_learned_metric_and_the_orthogonal_features_have_fewer_errors(capsys):
    (before, after), (gaussian, orthogonal) = printed("metric", capsys)
    assert after < before / 2
    assert orthogonal < gaussian


def test_the_readme_s_rotation_halves_the_rounding_error(capsys):
    code = (EXAMPLES.parent / "README.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    assert len([line for line in code.splitlines() if line]) <= 20
    exec(code, {})
    first, second = capsys.readouterr().out.replace("%", "").splitlines()
    before, after = first.removeprefix("4-bit error ").split(" -> ")
    assert float(after) < float(before) / 2
    assert float(second.split()[-1]) < 1e-5


def test_the_rotations_learn_to_compress(capsys):
    for angles, before, after, most, error in printed("givens", capsys):
        assert before < 4
        assert after > (0.98 if angles == 120 else 0.6) * most
        assert error < 1e-5


def test_the_equation_tells_the_spirals_apart(capsys):
    (before, after), (error, _) = printed("ode", capsys)
    assert before < 60
    assert after > 70
    assert error < 1e-6


def test_the_flows_bend_a_gaussian_into_the_target(capsys):
    (before, after), (error,) = printed("flow", capsys)
    assert after < before / 10
    assert error < 1e-5


def test_a_cut_is_below_its_bound_and_above_half_of_the_edges(capsys):
    (cut, edges, bound), (gap,) = printed("cut", capsys)
    assert edges / 2 < cut <= bound < edges
    assert gap <= 1e-6
