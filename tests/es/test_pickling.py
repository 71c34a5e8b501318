"""Objectives that other processes cannot import by name: sent by value, or refused with advice."""

import os
import subprocess
import sys
from threading import Lock

import pytest
import torch

from es import objectives
from skewflow.errors import WorkerError
from skewflow.es import Outcome
from skewflow.es.pickling import load_objective, pickled_objective

pytest.importorskip("cloudpickle", reason="sends functions by value")

INTERACTIVE = """
import sys
if "without" in sys.argv:
    sys.modules["cloudpickle"] = None
import torch
from skewflow.es import Objective, Outcome, minimize

target = torch.tensor([1.0, 2.0])

class Shifted(Objective):
    def __init__(self, shift):
        self.shift = shift

    def evaluate(self, params, seed, moments):
        return Outcome(float(self.shift(params["x"]).square().sum()))

def shift(x):
    return x - target

start, options = {"x": torch.zeros(2)}, {"generations": 2, "num_directions": 2}
found = minimize(Shifted(shift), start, workers=1, **options)
assert found.records == minimize(Shifted(shift), start, **options).records
"""

SCRIPT = """
from threading import Lock
import torch
from skewflow.es import minimize

lock = Lock()  # it cannot be pickled, so `locked` can only travel by its name

def locked(params):
    with lock:
        return params["x"].sum()

if __name__ == "__main__":
    def guarded(params):
        return 0.0

    start = {"x": torch.zeros(2)}
    print(minimize(locked, start, generations=1, workers=1).score)
    minimize(guarded, start, generations=1, workers=1)
"""


def python(*words, **options):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, **options)


def test_functions_and_classes_of_an_interactive_session_are_sent_by_value():
    run = python("-", input=INTERACTIVE)
    assert run.returncode == 0, run.stderr


@pytest.mark.bad_input
def test_without_cloudpickle_a_function_of_an_interactive_session_is_refused_with_advice():
    run = python("-c", INTERACTIVE, "without")
    *_, last = run.stderr.splitlines()
    assert "WorkerError: worker processes must be able to load the objective: they cannot" in last
    assert "import Shifted, shift from this `__main__`. Define it at the top of a module" in last
    assert "or install cloudpickle, or evaluate in this process with `workers=0`." in last


@pytest.mark.bad_input
def test_functions_of_a_script_travel_by_name_and_guarded_ones_are_refused_with_advice(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    run = python(tmp_path / "script.py")
    assert float(run.stdout) < 0.0
    *_, last = run.stderr.splitlines()
    assert "WorkerError: workers must find `guarded` where this process has it" in last
    assert 'top of the script, outside of `if __name__ == "__main__":`' in last


def test_lambdas_and_closures_are_sent_by_value_and_functions_of_modules_by_name():
    scale = torch.tensor(3.0)
    point = {"x": torch.ones(2)}
    again = load_objective(pickled_objective(lambda params: scale * params["x"].sum()))
    assert again.evaluate(point, 0, None) == Outcome(6.0)
    assert load_objective(pickled_objective(objectives.sphere)).f is objectives.sphere


@pytest.mark.bad_input
def test_what_can_be_sent_in_no_way_is_refused_at_once(monkeypatch):
    lock = Lock()
    with pytest.raises(
        WorkerError, match="cannot pickle '_thread.lock' .* at the first evaluation"
    ):
        pickled_objective(lambda params: lock)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(WorkerError, match="lambda.* or install cloudpickle, or evaluate in this"):
        pickled_objective(lambda params: 0.0)
