"""Directions that JAX draws: theirs is the sum, and they depend on their numbers alone."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("jax")

from helpers import assert_close
from skewflow.es import EvolutionStrategy
from skewflow_lab.rl.mjx_noise import directions, perturbed
from skewflow_lab.rl.mjx_strategy import MjxStrategy


def made(seed=0, n=5, kind=MjxStrategy):
    # Not in the order of the alphabet, in which JAX keeps a dict.
    params = {"c": nn.Parameter(torch.zeros(4, 3)), "W": nn.Parameter(torch.ones(4, 3))}
    sgd = torch.optim.SGD(params.values(), lr=0.1)
    return kind(params, [sgd], num_directions=n, sigma=0.1, maximize=True, seed=seed)


def test_the_sum_on_the_device_is_that_of_the_directions():
    strategy = made()
    generation, weights = strategy.ask(), np.array([1.0, 0.0, -2.0, 0.5, 3.0])
    ours = strategy.gradients(generation, weights)
    plain = EvolutionStrategy.gradients(strategy, generation, weights)
    for name in plain:
        assert_close(name, plain[name], ours[name], torch.float32)


def test_perturbed_points_are_those_of_the_tasks():
    generations = [made(seed).ask() for seed in (0, 7)]
    centres = {name: np.stack([g.centre[name].numpy() for g in generations]) for name in ("c", "W")}
    points = perturbed(centres, 0.1, np.array([0, 7], dtype=np.uint32), 0, count=5)
    for j, generation in enumerate(generations):
        for task in generation.tasks:
            point = generation.params(task)
            for name, p in point.items():
                ours = points[name][j, task.direction, task.number % 2]
                assert_close(name, p, torch.from_numpy(np.array(ours)), torch.float32)


def test_a_direction_depends_on_seed_generation_and_number_alone():
    drawn = made(n=5).ask().direction(3)["W"]
    assert torch.equal(drawn, made(n=9).ask().direction(3)["W"])
    assert not torch.equal(drawn, made(n=5).ask().direction(4)["W"])
    assert not torch.equal(drawn, made(seed=1).ask().direction(3)["W"])
    later = made()
    later.tell([float(i) for i in range(10)])
    assert not torch.equal(drawn, later.ask().direction(3)["W"])


def test_a_strategy_that_stopped_goes_on_with_the_same_bits():
    whole, part, rest = made(), made(), made()
    values = [[float((i * k) % 5) for i in range(10)] for k in (1, 2, 3)]
    for value in values:
        whole.tell(value)
    part.tell(values[0])
    rest.load_state_dict(part.state_dict())
    for value in values[1:]:
        rest.tell(value)
    for name, p in whole.params.items():
        assert torch.equal(p, rest.params[name])
    assert torch.equal(whole.ask().direction(0)["W"], rest.ask().direction(0)["W"])


def test_the_directions_are_standard_gaussian():
    drawn = np.asarray(directions((("W", (4, 3)),), np.uint32(0), 0, np.arange(300))["W"])
    # Four standard deviations of the mean and of the mean square of 3,600 draws.
    assert abs(drawn.mean()) < 4 / 60 and abs(np.square(drawn).mean() - 1) < 4 * 2**0.5 / 60


def test_a_process_that_scores_the_centre_does_not_import_jax(tmp_path):
    path = tmp_path / "generation"
    path.write_bytes(pickle.dumps(made().ask()))
    code = (
        "import pickle, sys; "
        f"generation = pickle.load(open({str(path)!r}, 'rb')); "
        "print(generation.centre['W'].shape, 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch.Size([4, 3]) False"
