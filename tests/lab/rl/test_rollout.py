"""Policies against torch, and episodes of simulations whose return is known."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from helpers import assert_close
from lab.rl import fakes
from skewflow.errors import NonFiniteReturnError, ShapeError
from skewflow.es import EvolutionStrategy, InProcess, LocalWorkers, Moments
from skewflow.geometry import check_stiefel
from skewflow.nn import OrthogonalRNNCell
from skewflow_lab.rl.policies import CLIP, Affine, affine_params, make_policy, recurrent_params
from skewflow_lab.rl.rollout import Rollout


def recurrent(generator, orthogonal=True):
    params = recurrent_params(5, 3, 8, orthogonal=orthogonal, generator=generator)
    for name in ("b", "C", "c"):
        params[name].normal_(generator=generator)
    return params


def test_the_recurrent_policy_is_the_cell_with_an_affine_read_out(generator):
    params = recurrent(generator)
    cell, readout = OrthogonalRNNCell(5, 8, "tanh"), nn.Linear(8, 3)
    cell.load_state_dict(
        {"weight_hh": params["W"], "input.weight": params["U"], "input.bias": params["b"]}
    )
    readout.load_state_dict({"weight": params["C"], "bias": params["c"]})
    policy, h = make_policy(params, None), None
    for x in torch.randn(4, 5, generator=generator):
        h = cell(x, h)
        action = policy.act(x.double().numpy())
        assert_close("action", readout(h), action, torch.float32)


def test_the_affine_policy_has_no_state(generator):
    params = affine_params(5, 3)
    params["K"].normal_(generator=generator)
    params["c"].normal_(generator=generator)
    policy = make_policy(params, None)
    assert isinstance(policy, Affine)
    x = torch.randn(5, generator=generator)
    first, second = policy.act(x.numpy()), policy.act(x.numpy())
    assert (first == second).all()
    assert_close("action", params["K"] @ x + params["c"], first, torch.float32)


def test_only_orthogonal_starts_are_orthogonal_and_all_act_with_zero(generator):
    for orthogonal in (True, False):
        params = recurrent_params(5, 3, 8, orthogonal=orthogonal, generator=generator)
        assert bool(check_stiefel(params["W"])) == orthogonal
        assert not make_policy(params, None).act(np.ones(5)).any()


def test_observations_are_normalised_clipped_and_zero_where_they_never_varied():
    rows = np.array([[0.0, 5.0, 1.0], [2.0, 5.0, 3.0], [1.0, 5.0, 2.0]])
    policy = make_policy(affine_params(3, 1), Moments.of(rows))
    seen = policy.normalise(np.array([2.0, 1e6, 1e6]))
    assert_close("seen", np.array([1 / rows[:, 0].std(), 0.0, CLIP]), seen)


def test_returns_and_observations_of_an_episode_are_counted_by_hand():
    params = affine_params(2, 1)
    params["c"].fill_(9.0)  # clipped to 2
    rollout = Rollout("counter", 1000, fakes.counter)
    score = rollout.score(params, 7, None)
    assert (score.value, score.steps, score.observed) == (5 * 3.0, 5, None)
    trained = rollout.evaluate(params, 7, None)  # without the bonus of 1
    assert (trained.value, trained.steps) == (5 * 2.0, 5)
    assert trained.observed.mean.tolist() == [7.0, 2.0]  # the last observation is not acted upon
    assert Rollout("counter", 3, fakes.counter).score(params, 7, None).value == 3 * 3.0


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_training_keeps_a_part_of_the_bonus_and_scores_all_of_it(part):
    params = affine_params(2, 1)
    params["c"].fill_(0.25)
    rollout = Rollout("counter", 1000, fakes.counter, alive_part=part)
    assert rollout.evaluate(params, 0, None).value == 5 * (0.25 + part)
    assert rollout.score(params, 0, None).value == 5 * 1.25


def test_a_rollout_travels_without_its_simulation():
    rollout = Rollout("counter", 1000, fakes.counter)
    rollout.score(affine_params(2, 1), 0, None)
    assert pickle.loads(pickle.dumps(rollout))._environment is None
    assert rollout._environment is not None


def strategy():
    params = {name: nn.Parameter(p) for name, p in affine_params(2, 1).items()}
    sgd = torch.optim.SGD(params.values(), lr=0.1)
    return EvolutionStrategy(params, [sgd], num_directions=2, sigma=0.1)


@pytest.mark.bad_input
def test_a_task_that_changes_the_size_of_its_observations_is_refused():
    text = r"growing has 2, and gave an observation of shape \(3,\) at step 3. Pad"
    rollout = Rollout("growing", 1000, fakes.growing)
    with pytest.raises(ShapeError, match=text):
        InProcess(rollout).evaluate(strategy().ask())
    with LocalWorkers(rollout, 1) as workers, pytest.raises(ShapeError, match=text):
        workers.evaluate(strategy().ask())


@pytest.mark.bad_input
def test_a_return_that_is_not_a_number_is_refused():
    rollout = Rollout("broken", 1000, fakes.broken)
    with pytest.raises(NonFiniteReturnError, match="got nan at plus direction 0 of generation 0"):
        InProcess(rollout).evaluate(strategy().ask())
