"""Compact policies: their transitions are what they are named after, and training improves them."""

import json

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

from helpers import assert_close, randn
from skewflow.geometry import check_special, orthogonality_error
from skewflow_lab.bench import givens_policy
from skewflow_lab.rl.tasks import missing_simulators
from skewflow_lab.runs import files
from skewflow_lab.runs.files import RunError


@pytest.mark.parametrize("rounds, angles", [(3, (3, 3)), (0, (5, 3))])
def test_rotations_give_a_rotation_of_few_angles(rounds, angles):
    params, transition = givens_policy.rotations(rounds)(6)
    assert params["angles"].shape == angles
    W = transition({"angles": params["angles"], "C": None})
    assert check_special(W)


def test_reflections_are_those_of_torch(generator):
    layer = orthogonal(nn.Linear(6, 6, bias=False), orthogonal_map="householder")
    own = layer.parametrizations.weight
    lower = randn(15, generator=generator).float()
    params, transition = givens_policy.reflections(6)
    assert params["reflections"].shape == lower.shape
    start = transition(dict(params))
    with torch.no_grad():
        i, j = torch.tril_indices(6, 6, -1).unbind()
        own.original[i, j] = lower
        own[0].base.copy_(start)
    W = transition({"reflections": lower})
    assert orthogonality_error(W) < 1e-5
    assert_close("weight", layer.weight.detach(), W, torch.float32)


@pytest.mark.skipif(bool(missing_simulators()), reason="needs the extra rl")
def test_policies_are_trained_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROOT", tmp_path)
    (tmp_path / "results" / "bench").mkdir(parents=True)
    monkeypatch.setattr(givens_policy, "SCORES", 1)
    sizes = {"hidden": 4, "generations": 1, "directions": 2, "horizon": 5, "seeds": 2}
    givens_policy.givens_policy(**sizes, save=True)
    found = json.loads((tmp_path / "results/bench/givens_policy.json").read_text())
    counts = {row["policy"]: row["of the transition"] for row in found["rows"]}
    assert counts == {
        "GivensLinear, 4 rounds": 8,
        "GivensLinear, 16 rounds": 32,
        "GivensLinear, d - 1 rounds": 6,
        "torch, Householder": 6,
        "OrthogonalLinear, FlowSGD": 16,
        "Linear": 16,
        "affine": 0,
    }
    assert all(row["least"] < row["largest"] for row in found["rows"])
    again = givens_policy._train(
        "torch, Householder", "HalfCheetah", 4, 1, generations=1, directions=2, horizon=5
    )
    row = found["rows"][list(counts).index("torch, Householder")]
    assert again[0] in (row["least"], row["largest"])


@pytest.mark.bad_input
def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(RunError, match="at least 2.*got --hidden 1"):
        givens_policy.givens_policy(hidden=1)
    with pytest.raises(RunError, match="at least 1: got --seeds 0"):
        givens_policy.givens_policy(seeds=0)
