"""EnvPool against the original environments, and episodes in lockstep."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from helpers import assert_close
from skewflow.errors import NonFiniteReturnError
from skewflow.es import EvolutionStrategy, Moments
from skewflow_lab.rl import pool as module
from skewflow_lab.rl.lockstep import Lockstep
from skewflow_lab.rl.policies import CLIP, affine_params, make_policy, recurrent_params
from skewflow_lab.rl.pool import Pool
from skewflow_lab.rl.pool_workers import PoolWorkers
from skewflow_lab.rl.rollout import Rollout
from skewflow_lab.rl.tasks import PAPER_TASKS, TASKS, make, missing_simulators
from skewflow_lab.runs.files import RunError

needs_envpool = pytest.mark.skipif(
    bool(missing_simulators()) or module.find_spec("envpool") is None,
    reason="needs the extra `rl`",
)

AGREE = {"Humanoid": 2e-3}
"""Largest difference over 20 steps, relative to 1 + the size of an entry; 1e-6 elsewhere. Forces of
contacts are solved by iteration, which begins where the simulation has been before."""


def place(task, environment, o):
    """Bring the original environment into the state of an observation; what it then observes."""
    inner = environment._env
    if task in ("HalfCheetah", "Walker2d", "Humanoid"):
        inner.reset(seed=0)
        model, hidden = inner.unwrapped.model, 2 if task == "Humanoid" else 1
        shown = model.nq - hidden
        inner.unwrapped.set_state(
            np.concatenate([np.zeros(hidden), o[:shown]]), o[shown : shown + model.nv]
        )
        return inner.unwrapped._get_obs()
    inner.reset()
    physics = inner.physics
    qpos, qvel = {
        "reacher-hard": (o[:2], o[4:6]),
        "hopper-stand": (np.concatenate([[0.0], o[:6]]), o[6:13]),
        "swimmer15": (np.concatenate([np.zeros(3), o[:14]]), 0.0),
    }[task]

    def move(target=None):
        with physics.reset_context():
            physics.data.qpos[:], physics.data.qvel[:] = qpos, qvel
            if target is not None:
                physics.named.model.geom_pos["target", :2] = target

    move()
    places = physics.named.data.geom_xpos
    if task == "reacher-hard":
        move(places["finger", :2] + o[2:4])
    if task == "swimmer15":
        head = physics.named.data.xmat["head"].reshape(3, 3)
        move(places["nose", :2] + (head @ [o[14], o[15], 0.0])[:2])
    return np.concatenate([np.ravel(v) for v in inner.task.get_observation(physics).values()])


@needs_envpool
@pytest.mark.parametrize("task", PAPER_TASKS)
def test_observations_rewards_and_ends_are_those_of_the_original(task):
    original, pool = make(task), Pool(task, [7], 1)
    assert pool.low == pytest.approx(original.low) and pool.high == pytest.approx(original.high)
    assert pool.alive == original.alive
    rng, slot = np.random.default_rng(0), np.array([0], dtype=np.int32)
    (seen,) = pool.start(0)
    assert_close("start", seen, place(task, original, seen), factor=1e-3)
    # Rounding grows: on HalfCheetah to 1e-7 in 50 steps and to other motions in 100.
    for _ in range(20):
        action = rng.uniform(pool.low, pool.high)
        (seen,), (reward,), (over,) = pool.step(slot, action[None])
        expected, same, ends = original.step(action)
        apart = np.abs(seen - expected) / (1 + np.abs(expected))
        assert max(apart.max(), abs(reward - same)) < AGREE.get(task, 1e-6)
        assert over == ends
    original.close()
    pool.close()


@needs_envpool
@pytest.mark.parametrize("task", [task for task in TASKS if task not in PAPER_TASKS])
def test_a_task_of_positions_hides_the_velocities_alone(task):
    name = task.removesuffix("-positions")
    whole, part = Pool(name, [3], 1), Pool(task, [3], 1)
    hidden = {"HalfCheetah": range(8, 17), "hopper-stand": range(6, 13)}[name]
    assert (part.start(0) == np.delete(whole.start(0), list(hidden), axis=1)).all()
    environment = make(task)
    assert environment.reset(0).shape == (environment.observation_size,) == part.start(0)[0].shape
    environment.close()


@needs_envpool
def test_an_episode_depends_on_the_seed_of_its_slot_and_its_number_alone():
    pool = Pool("HalfCheetah", [5, 5, 2**32 - 1], 2)
    third = pool.start(2)
    assert (third[0] == third[1]).all() and (third[0] != third[2]).any()
    pool.step(np.array([1], dtype=np.int32), np.ones((1, 6)))
    first = pool.start(0)
    assert (first != third).any()
    assert (pool.start(2) == third).all()
    assert (Pool("HalfCheetah", [2**31 - 1, 5], 1).start(2) == third[[2, 0]]).all()


def strategy(task="HalfCheetah", hidden=8, affine=False, **settings):
    environment = make(task)
    sizes = environment.observation_size, len(environment.low)
    environment.close()
    g = torch.Generator().manual_seed(0)
    params = affine_params(*sizes)
    if not affine:
        params = recurrent_params(*sizes, hidden, orthogonal=True, generator=g)
    params = {name: nn.Parameter(p) for name, p in params.items()}
    sgd = torch.optim.SGD(params.values(), lr=0.1)
    settings = {"num_directions": 3, "sigma": 0.1, "num_scores": 2, "maximize": True, **settings}
    return EvolutionStrategy(params, [sgd], **settings)


def train(threads, generations=3, task="HalfCheetah", horizon=30, **settings):
    found = strategy(task, **settings)
    with PoolWorkers(Rollout(task, horizon), found.tasks(0), threads) as workers:
        for _ in range(generations):
            found.tell(workers.evaluate(found.ask()))
        last = workers.evaluate(found.ask())
    return found, [o.value for o in last]


@needs_envpool
@pytest.mark.parametrize("affine", [False, True])
def test_one_thread_and_two_give_the_same_bits(affine):
    (one, ones), (two, twos) = (train(threads, affine=affine) for threads in (1, 2))
    assert ones == twos
    assert all(torch.equal(one.params[name], p) for name, p in two.params.items())


@needs_envpool
def test_a_later_generation_does_not_depend_on_what_ran_before():
    found, values = train(1)
    with PoolWorkers(Rollout("HalfCheetah", 30), found.tasks(0), 1) as workers:
        generation = found.ask()
        assert generation.number == 3
        some = workers.evaluate(generation, generation.tasks[2:5])
        assert [o.value for o in some] == values[2:5]
        assert [o.value for o in workers.evaluate(generation)] == values


@needs_envpool
def test_finished_episodes_leave_and_the_others_go_on():
    found = strategy("Walker2d", num_evaluations=2)
    with PoolWorkers(Rollout("Walker2d", 400), found.tasks(0), 1) as workers:
        outcomes = workers.evaluate(found.ask())
    lengths = [o.steps for o in outcomes]
    assert len(set(lengths)) > 1 and max(lengths) < 400  # all have fallen, at different times
    assert [o.observed.count for o in outcomes[:6]] == lengths[:6]
    assert [o.observed for o in outcomes[6:]] == [None, None]
    # The bonus of 1 a step counts in scores and not in training.
    with PoolWorkers(Rollout("Walker2d", 400, alive_part=1.0), found.tasks(0), 1) as workers:
        whole = workers.evaluate(found.ask())
    assert_close("paid", whole[0].value, outcomes[0].value + lengths[0] / 2)
    assert whole[7].value == outcomes[7].value


@needs_envpool
def test_frozen_parameters_take_part():
    found = strategy()
    W = found.params.pop("W")
    kept = EvolutionStrategy(
        found.params,
        [torch.optim.SGD(found.params.values(), lr=0.1)],
        num_directions=2,
        sigma=0.1,
    )
    values = []
    for factor in (1.0, 0.5):
        rollout = Rollout("HalfCheetah", 30, fixed={"W": factor * W.detach()})
        with PoolWorkers(rollout, kept.tasks(0), 1) as workers:
            values.append([o.value for o in workers.evaluate(kept.ask())])
        original = rollout.episode(kept.ask().params(kept.ask().tasks[0]), 0, None)
        assert len(original[1]) == 30
    assert values[0] != values[1]


@needs_envpool
def test_no_process_is_left_behind():
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    train(2, generations=1)
    assert children.read_text() == before


@pytest.mark.parametrize("affine", [False, True])
def test_policies_in_lockstep_are_those_of_single_episodes(affine, generator):
    def made():
        if affine:
            params = affine_params(5, 3)
        else:
            params = recurrent_params(5, 3, 8, orthogonal=True, generator=generator)
        return {name: p.normal_(generator=generator) / 3 for name, p in params.items()}

    members = [made() for _ in range(2)]
    rows = np.random.default_rng(0).normal(3.0, 2.0, (20, 5))
    rows[:, 4] = 1.0  # it never varies
    moments = Moments.of(rows)
    low, high = -np.ones(3), np.ones(3)
    of_slot = np.array([1, 0, 1])
    policies = Lockstep(members, of_slot, moments, low, high)
    single = [make_policy(members[m], moments) for m in of_slot]
    seen = np.random.default_rng(1).normal(3.0, 20.0, (6, 3, 5))
    assert np.abs((seen - moments.mean) * moments.scale()).max() > CLIP
    for t, slots in enumerate([[0, 1, 2], [0, 1, 2], [2], [1, 2], [2], [1]]):
        actions = policies.act(np.array(slots, dtype=np.int32), seen[t][slots])
        for slot, action in zip(slots, actions, strict=True):
            expected = np.clip(single[slot].act(seen[t, slot]), low, high)
            assert_close("action", expected, action, torch.float32)
    at = [0, 1, 3, 5]
    expected = Moments.of(seen[at, 1])
    found = policies.observed(1)
    assert found.count == 4
    assert_close("mean", expected.mean, found.mean)
    assert_close("squares", expected.squares, found.squares)


def test_a_constant_observation_has_no_variance_in_lockstep():
    policies = Lockstep([affine_params(1, 1)], np.zeros(1), None, -np.ones(1), np.ones(1))
    for _ in range(1000):
        policies.act(np.array([0], dtype=np.int32), np.array([[0.1]]))
    found = policies.observed(0)
    assert found.squares.tolist() == [0.0] and found.scale().tolist() == [0.0]


@needs_envpool
@pytest.mark.bad_input
def test_a_return_that_is_not_a_number_is_refused(monkeypatch):
    def broken(self, slots, actions):
        return np.zeros((len(slots), 17)), np.full(len(slots), np.nan), np.zeros(len(slots), bool)

    monkeypatch.setattr(Pool, "step", broken)
    found = strategy()
    with (
        PoolWorkers(Rollout("HalfCheetah", 3), found.tasks(0), 1) as workers,
        pytest.raises(NonFiniteReturnError, match="got nan at plus direction 0 of generation 0"),
    ):
        workers.evaluate(found.ask())


@pytest.mark.bad_input
def test_a_missing_pool_is_named_with_the_way_to_do_without(monkeypatch):
    monkeypatch.setattr(module, "require_simulators", lambda: None)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install 'skewflow\[rl\]'. --backend processes does"):
        Pool("HalfCheetah", [0], 1)
