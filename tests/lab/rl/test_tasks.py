"""The six tasks: their sizes, their seeds, their own rewards."""

import numpy as np
import pytest

from skewflow_lab.rl import tasks
from skewflow_lab.runs.files import RunError

needs_simulators = pytest.mark.skipif(
    bool(tasks.missing_simulators()), reason="needs the extra `rl`"
)

SIZES = {
    "Humanoid": (348, 17, 0.4),
    "Walker2d": (17, 6, 1.0),
    "HalfCheetah": (17, 6, 1.0),
    "reacher-hard": (6, 2, 1.0),
    "hopper-stand": (15, 4, 1.0),
    "swimmer15": (61, 14, 1.0),
    "HalfCheetah-positions": (8, 6, 1.0),
    "hopper-stand-positions": (8, 4, 1.0),
}


def episode(environment, seed, steps=20):
    """Observations and rewards under actions that depend on the seed."""
    rng = np.random.default_rng(seed)
    found = [environment.reset(seed)]
    for _ in range(steps):
        action = rng.uniform(environment.low, environment.high)
        observation, reward, over = environment.step(action)
        found += [observation, np.array([reward, over])]
        if over:
            break
    return np.concatenate(found)


@needs_simulators
@pytest.mark.parametrize("name", tasks.TASKS)
def test_an_episode_depends_on_its_seed_alone(name):
    environment = tasks.make(name)
    observations, actions, bound = SIZES[name]
    assert environment.observation_size == observations
    assert environment.low.shape == environment.high.shape == (actions,)
    assert environment.high == pytest.approx(bound) and environment.low == pytest.approx(-bound)
    fresh = episode(environment, 3)
    other = episode(environment, 4)
    assert not np.array_equal(fresh, other)
    assert np.array_equal(episode(environment, 3), fresh)
    environment.close()
    again = tasks.make(name)
    assert np.array_equal(episode(again, 3), fresh)
    again.close()


@needs_simulators
def test_rewards_and_ends_are_those_of_gymnasium():
    import gymnasium

    theirs, ours = gymnasium.make("Humanoid-v5"), tasks.make("Humanoid")
    theirs.reset(seed=0)
    ours.reset(0)
    assert ours.alive == theirs.unwrapped.healthy_reward  # it stands
    for step in range(200):
        action = np.full(17, 0.4 * np.sin(step))
        _, reward, terminated, truncated, _ = theirs.step(action)
        _, same, over = ours.step(action)
        assert same == reward and over == (terminated or truncated)
        if over:
            break
    assert over and 1 < step < 100  # it has fallen
    theirs.close()
    ours.close()


@needs_simulators
def test_an_episode_of_dm_control_ends_after_a_thousand_steps():
    environment = tasks.make("reacher-hard")
    environment.reset(0)
    ends = [environment.step(np.zeros(2))[2] for _ in range(1000)]
    assert ends.index(True) == 999
    environment.close()


@pytest.mark.bad_input
def test_an_unknown_task_lists_the_known_ones():
    with pytest.raises(RunError, match="one of Humanoid, Walker2d, .* swimmer15, .* got 'Ant'"):
        tasks.make("Ant")


@pytest.mark.bad_input
def test_a_missing_simulator_is_named_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setattr(tasks, "find_spec", lambda name: None if name == "dm_control" else name)
    with pytest.raises(RunError, match=r"need dm_control, .* pip install 'skewflow\[rl\]'"):
        tasks.make("HalfCheetah")


@needs_simulators
def test_a_simulation_that_breaks_warns_and_writes_no_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    environment = tasks.make("HalfCheetah")
    environment.reset(0)
    with pytest.warns(RuntimeWarning, match="MuJoCo: Nan, Inf or huge value in"):
        environment.step(np.full(6, np.nan))
    environment.close()
    assert not list(tmp_path.iterdir())
