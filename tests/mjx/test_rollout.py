"""Batches of episodes against one episode at a time, and simulations whose return is known."""

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("jax")
pytest.importorskip("mujoco.mjx")

from mjx.fake import Counter
from skewflow.es import InProcess, Moments
from skewflow_lab.rl import mjx_fewer
from skewflow_lab.rl.mjx_rollout import Batch
from skewflow_lab.rl.mjx_strategy import MjxStrategy
from skewflow_lab.rl.mjx_tasks import State, simulate
from skewflow_lab.rl.policies import affine_params, recurrent_params
from skewflow_lab.rl.rollout import Rollout


def strategy(params, seed=0, **settings):
    params = {name: nn.Parameter(p) for name, p in params.items()}
    sgd = torch.optim.SGD(params.values(), lr=0.1)
    settings = {"num_directions": 3, "sigma": 0.05, "num_evaluations": 2, **settings}
    return MjxStrategy(params, [sgd], maximize=True, seed=seed, **settings)


def test_a_batch_gives_what_single_episodes_give(generator):
    """Of policies of two shapes and two seeds, with common starts and with starts of their own.

    The model is the environment's own.
    """
    rows = np.random.default_rng(0).normal(size=(50, 17))
    strategies = [
        strategy(recurrent_params(17, 6, 8, orthogonal=True, generator=generator), 1),
        strategy(affine_params(17, 6), 2, common_seeds=False),
        strategy(
            recurrent_params(17, 6, 8, orthogonal=False, generator=generator), 3, common_seeds=False
        ),
    ]
    strategies[1].moments = strategies[2].moments = Moments.of(rows)
    generations = [s.ask() for s in strategies]
    simulation = simulate("HalfCheetah", fast=False)
    caps = [12, 12, 12]
    found = Batch(simulation).evaluate(generations, caps)
    for generation, ours in zip(generations, found, strict=True):
        single = InProcess(Rollout("HalfCheetah", 12)).evaluate(generation)
        assert ours.steps.tolist() == [o.steps for o in single] == [24] * 6
        # Single precision, and contacts: HalfCheetah lands at about the tenth step.
        assert ours.values == pytest.approx([o.value for o in single], abs=2e-3)
        observed = single[0].observed
        for outcome in single[1:]:
            observed = observed.merge(outcome.observed)
        assert ours.observed.count == observed.count and ours.broken == 0
        assert ours.observed.mean == pytest.approx(observed.mean, abs=1e-3)
        assert ours.observed.scale() == pytest.approx(observed.scale(), rel=1e-2)
    simulation.close()


def constant(action, **settings):
    params = affine_params(2, 1)
    params["c"].fill_(action)
    return strategy(params, sigma=1e-30, **settings)


def lengths(generation):
    return [seed % 7 + 2 for seed in generation.tasks[0].seeds]


def test_returns_lengths_and_observations_are_counted_by_hand():
    asked = [constant(0.5, seed=seed).ask() for seed in (0, 1)]
    for generation, found in zip(asked, Batch(Counter()).evaluate(asked, [100, 100]), strict=True):
        n = lengths(generation)
        assert found.steps.tolist() == [sum(n)] * 6  # both seeds
        assert found.values == pytest.approx([0.5 * sum(n) / 2] * 6)  # without the bonus of 1
        assert found.length == sum(n) / 2 and found.broken == 0
        rows = np.array([[k, t] for k in n for t in range(k)] * 6, dtype=float)
        want = Moments.of(rows)  # the last observation is not acted upon
        assert found.observed.count == want.count
        assert found.observed.mean == pytest.approx(want.mean)
        assert found.observed.squares == pytest.approx(want.squares, rel=1e-5)


def test_each_direction_has_its_own_starts_and_both_of_its_sides_share_them():
    asked = [constant(0.5, seed=seed, common_seeds=False).ask() for seed in (0, 1)]
    for generation, found in zip(asked, Batch(Counter()).evaluate(asked, [100, 100]), strict=True):
        n = [[seed % 7 + 2 for seed in task.seeds] for task in generation.tasks]
        assert len({tuple(pair) for pair in n}) > 1 and n[::2] == n[1::2]
        assert found.steps.tolist() == [sum(pair) for pair in n]
        assert found.values == pytest.approx([0.5 * sum(pair) / 2 for pair in n])
        assert found.length == np.mean(n)
        want = Moments.of(np.array([[k, t] for pair in n for k in pair for t in range(k)], float))
        assert found.observed.count == want.count
        assert found.observed.mean == pytest.approx(want.mean)
        assert found.observed.squares == pytest.approx(want.squares, rel=1e-5)


def test_first_observations_are_counted_from_the_midst_of_all_starts():
    """In float32 the squares of 1e4 would leave nothing of deviations of 2."""

    class Far(Counter):
        def start(self, seed):
            state, seen = super().start(seed)
            return state, seen + np.array([1e4, 0.0])

        def step(self, state, action):
            after = super().step(state, action)
            return after._replace(observation=after.observation + np.array([1e4, 0.0], np.float32))

    asked = constant(0.5, num_directions=40, common_seeds=False).ask()
    (found,) = Batch(Far()).evaluate([asked], [100])
    n = [seed % 7 + 2 for task in asked.tasks for seed in task.seeds]
    want = Moments.of(np.array([[1e4 + k, t] for k in n for t in range(k)]))
    assert found.observed.mean == pytest.approx(want.mean)
    assert found.observed.scale() == pytest.approx(want.scale(), rel=1e-4)


def test_starts_made_ahead_are_those_of_the_seeds_and_each_seed_is_reset_once():
    class Watched(Counter):
        reset = ()

        def start(self, seed):
            self.reset = (*self.reset, seed)
            return super().start(seed)

    strategies = [constant(0.5, seed=seed, common_seeds=seed == 2) for seed in (0, 1, 0, 2)]
    batch = Batch(Watched())
    ahead = batch.starts([s.evaluation_seeds(0) for s in strategies])
    assert len(batch.simulation.reset) == len(set(batch.simulation.reset)) == 6 + 6 + 2
    asked = [s.ask() for s in strategies]
    for j, generation in enumerate(asked):
        for task in generation.tasks:
            rows = ahead.observation[j, task.direction], ahead.state.qpos[j, task.direction]
            for row in rows:
                assert row.tolist() == [[seed % 7 + 2, 0] for seed in task.seeds]
    caps = [100] * 4
    for given, made in zip(
        batch.evaluate(asked, caps, starts=ahead), batch.evaluate(asked, caps), strict=True
    ):
        assert given.values.tolist() == made.values.tolist()
        assert given.observed.mean.tolist() == made.observed.mean.tolist()


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_returns_keep_a_part_of_the_bonus_for_being_alive(part):
    asked = constant(0.5).ask()
    (found,) = Batch(Counter(), part).evaluate([asked], [100])
    assert found.values == pytest.approx([(0.5 + part) * sum(lengths(asked)) / 2] * 6)


def test_actions_are_clipped_and_episodes_capped_one_strategy_at_a_time():
    asked = [constant(9.0).ask(), constant(9.0).ask()]
    short, long = Batch(Counter()).evaluate(asked, [2, 100])
    assert short.values == pytest.approx([2 * 2.0] * 6) and short.length == 2
    n = lengths(asked[1])
    assert long.values == pytest.approx([2.0 * sum(n) / 2] * 6)


def test_an_episode_longer_than_a_chunk_goes_on_in_the_next():
    class Long(Counter):
        def start(self, seed):
            state, seen = super().start(seed)
            seen = seen * 0 + [60, 0.0]
            return state._replace(qpos=seen), seen

    chunks = []
    (found,) = Batch(Long()).evaluate([constant(1.0).ask()], [100], chunks.append)
    assert found.length == 60 and found.values == pytest.approx([60.0] * 6)
    assert chunks == [0.25, 0.5, 0.75]


class Spread(Counter):
    """Episodes of 5 to 157 steps, of which ever fewer go on."""

    def start(self, seed):
        _, seen = super().start(seed)
        seen = np.array([5.0 + 152.0 * (seed % 11 / 10) ** 3, 0.0])
        return State(seen, np.zeros(1), np.zeros(1), np.zeros(1)), seen


def test_half_of_a_batch_goes_on_alone_and_gives_what_the_whole_one_does(generator, monkeypatch):
    """Policies of two shapes, some with a memory, so that a row in a wrong place would show."""
    policies = (
        recurrent_params(2, 1, 8, orthogonal=True, generator=generator),
        affine_params(2, 1),
        recurrent_params(2, 1, 8, orthogonal=False, generator=generator),
    )
    own = {"num_directions": 9, "common_seeds": False}
    strategies = [strategy(params, seed, **own) for seed, params in enumerate(policies)]
    for one in strategies:
        one.moments = Moments.of(np.random.default_rng(one.seed).normal(70.0, 50.0, size=(50, 2)))
    asked, caps = [s.ask() for s in strategies], [40, 200, 110]
    monkeypatch.setattr(mjx_fewer, "HALVINGS", 0)
    whole = Batch(Spread()).evaluate(asked, caps)
    monkeypatch.setattr(mjx_fewer, "HALVINGS", 3)
    monkeypatch.setattr(mjx_fewer, "SMALLEST", 1)
    taken, take = [], mjx_fewer.take

    def watched(given, episodes, rows):
        taken.append(rows)
        return take(given, episodes, rows)

    batch = Batch(Spread())
    batch.evaluate(asked, caps)  # compiled: `eval_shape` takes, too
    monkeypatch.setattr(mjx_fewer, "take", watched)
    fewer = batch.evaluate(asked, caps)
    assert [[len(rows) for rows in each] for each in taken] == [[36, 18], [18, 9]]
    for ours, want in zip(fewer, whole, strict=True):
        assert ours.steps.tolist() == want.steps.tolist() and len(set(want.steps)) > 3
        assert ours.values == pytest.approx(want.values, rel=1e-5, abs=1e-5)
        assert len(set(want.values.round(3))) > 6
        assert (ours.length, ours.broken) == (want.length, want.broken)
        assert ours.observed.count == want.observed.count
        assert ours.observed.mean == pytest.approx(want.observed.mean, rel=1e-6)
        assert ours.observed.squares == pytest.approx(want.observed.squares, rel=1e-5)


def test_half_of_each_lot_has_all_that_go_on_and_no_row_twice():
    going = np.array([True, False, True, False, False, False, True, False, False])
    first, second = mjx_fewer.half(going, [5, 4])
    assert {0, 2} <= set(first.tolist()) and len(set(first.tolist())) == 3
    assert 1 in second and len(set(second.tolist())) == 2
    assert mjx_fewer.half(np.array([True, True, True, False, False]), [5]) is not None
    assert mjx_fewer.half(np.array([True, True, False, True]), [4]) is None
    assert mjx_fewer.half(np.array([False] * 4 + [True, True]), [4, 2]) is None


def test_a_simulation_that_breaks_ends_its_episode_and_is_counted():
    asked = constant(0.5).ask()
    (found,) = Batch(Counter(breaks=2)).evaluate([asked], [100])
    assert found.broken == 12 and found.steps.tolist() == [4] * 6
    assert found.values == pytest.approx([0.5] * 6)  # its last step pays nothing
    assert np.isfinite(found.observed.mean).all()


def test_what_only_rounding_moves_counts_as_constant():
    class Trembling(Counter):
        def start(self, seed):
            state, seen = super().start(seed)
            seen = np.array([5.0, 1000.0 * (1 + 1e-7 * (seed % 2))])
            return state._replace(qpos=np.array([5.0, 0.0])), seen

        def step(self, state, action):
            after = super().step(state, action)
            return after._replace(observation=after.observation.at[1].set(1000.0 * (1 + 1e-7)))

    (found,) = Batch(Trembling()).evaluate([constant(0.5).ask()], [100])
    assert found.observed.scale().tolist() == [0.0, 0.0]
