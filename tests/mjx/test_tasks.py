"""The tasks in JAX against the environments they are written after, in double precision."""

from copy import copy

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("mujoco.mjx")

import jax.numpy as jnp  # noqa: E402
import mujoco  # noqa: E402

from skewflow_lab.rl import mjx_tasks, tasks  # noqa: E402

STEPS = 50

# Largest difference of an entry of an observation, relative to one plus its size, and of a reward.
# Humanoid's own solver is another one, which stops before it has converged, and touching limbs
# enlarge what is left. The others begin at rounding and grow with contacts or limits of joints.
TOLERANCES = {
    "Humanoid": 1e-2,
    "Walker2d": 1e-8,
    "HalfCheetah": 1e-5,
    "reacher-hard": 1e-10,
    "hopper-stand": 1e-8,
    "swimmer15": 1e-3,
}


# Where rewards are paid: the swimmer begins near its target, the hopper stands and falls.
SEEDS = dict.fromkeys(tasks.PAPER_TASKS, 3) | {"swimmer15": 12}


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def compare(simulation, environment, tolerance, seed):
    """Both step from the same state with the same actions; the ends that were seen."""
    rng = np.random.default_rng(0)
    state, first = simulation.start(seed)
    assert np.array_equal(first, environment.reset(seed))
    state, step, ends = jax.tree.map(jnp.asarray, state), jax.jit(simulation.step), set()
    for t in range(STEPS):
        action = rng.uniform(environment.low, environment.high)
        ours = step(state, jnp.asarray(action))
        observation, reward, over = environment.step(action)
        error = np.abs(ours.observation - observation) / (1 + np.abs(observation))
        assert error.max() < tolerance, f"observation {error.argmax()} at step {t}"
        assert float(ours.reward) == pytest.approx(reward, abs=tolerance), f"at step {t}"
        assert bool(ours.over) == over, f"at step {t}"
        state = ours.state
        ends.add(over)
    return ends


@pytest.mark.parametrize("name", tasks.PAPER_TASKS)
def test_a_task_is_that_of_its_environment(double, name):
    simulation, environment = mjx_tasks.simulate(name, fast=False), tasks.make(name)
    ends = compare(simulation, environment, TOLERANCES[name], SEEDS[name])
    assert (True in ends) == simulation.ends  # it has fallen
    assert simulation.alive == environment.alive
    simulation.close()
    environment.close()


# One that has converged in as few iterations as are given to it: Humanoid's two are not enough for
# two implementations to agree on every force. Legs that touch enlarge what is left.
@pytest.mark.parametrize(("name", "tolerance"), [("Humanoid", 1e-5), ("Walker2d", 1e-8)])
def test_a_faster_task_is_that_of_an_environment_with_its_model(
    double, monkeypatch, name, tolerance
):
    kind = mjx_tasks._SIMULATIONS[name]
    cheaper = kind.speed_up

    def converged(model):
        cheaper(model)
        model.opt.iterations, model.opt.ls_iterations = 50, 50

    monkeypatch.setattr(kind, "speed_up", staticmethod(converged))
    simulation, environment = mjx_tasks.simulate(name), tasks.make(name)
    model, _, _ = mjx_tasks.simulator(environment)
    own = model.opt.integrator
    model.opt.solver = simulation.mj.opt.solver
    converged(model)
    assert model.opt.integrator != own
    compare(simulation, environment, tolerance, SEEDS[name])
    simulation.close()
    environment.close()


@pytest.mark.parametrize("name", ["Humanoid", "Walker2d"])
def test_what_the_faster_task_lets_through_the_floor_never_reaches_it(name):
    """In the original environment, over episodes of held random actions of all sizes."""
    environment, rng = tasks.make(name), np.random.default_rng(0)
    model, data, _ = mjx_tasks.simulator(environment)
    cheaper = copy(model)
    mjx_tasks._SIMULATIONS[name].speed_up(cheaper)
    left = {i for i in range(model.ngeom) if cheaper.geom_contype[i] & 1}
    assert len(left) == 4
    floor, touched = model.geom("floor").id, set()
    for seed in range(60):
        environment.reset(seed)
        size, held, over, t = rng.uniform(), rng.integers(1, 12), False, 0
        while not over and t < 200:
            if t % held == 0:
                action = size * rng.uniform(environment.low, environment.high)
            _, _, over = environment.step(action)
            pairs = data.contact.geom[: data.ncon].tolist()
            touched |= {max(pair) for pair in pairs if min(pair) == floor}
            t += 1
    assert touched and touched <= left
    environment.close()


def test_the_legs_of_the_faster_humanoid_touch_each_other_as_its_own_do():
    """In random poses; else policies learn to let one leg pass through the other."""
    environment, rng = tasks.make("Humanoid"), np.random.default_rng(0)
    model, data, _ = mjx_tasks.simulator(environment)
    cheaper = copy(model)
    mjx_tasks._SIMULATIONS["Humanoid"].speed_up(cheaper)
    sides = [
        {model.geom(f"{side}_{part}").id for part in ("thigh1", "shin1", "foot")}
        for side in ("right", "left")
    ]

    def touching(of):
        there = mujoco.MjData(of)
        there.qpos[:] = data.qpos
        mujoco.mj_forward(of, there)
        pairs = {frozenset(pair) for pair in there.contact.geom[: there.ncon].tolist()}
        return {pair for pair in pairs if all(pair & side for side in sides)}

    seen = set()
    for seed in range(100):
        environment.reset(seed)
        low, high = model.jnt_range[1:].T
        data.qpos[2], data.qpos[7:] = 2.0, rng.uniform(low, high)
        found = touching(model)
        assert touching(cheaper) == found
        seen |= found
    assert len(seen) > 5
    environment.close()


def test_all_episodes_of_a_task_start_as_their_seeds_say(double):
    simulation = mjx_tasks.simulate("reacher-hard")
    (one, seen), (other, unlike) = simulation.start(1), simulation.start(2)
    assert not np.array_equal(one.memory, other.memory) and not np.array_equal(seen, unlike)
    again, same = simulation.start(1)
    assert np.array_equal(same, seen)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    simulation.close()


def test_the_finger_is_paid_where_dm_control_pays_it(double):
    """Fifty random steps pay nothing: the target is put at several distances from the finger."""
    simulation, environment = mjx_tasks.simulate("reacher-hard"), tasks.make("reacher-hard")
    model, _, _ = mjx_tasks.simulator(environment)
    step, paid = jax.jit(simulation.step), []
    for distance in (0.0, 0.01, 0.02, 0.024, 0.026, 0.05):
        state, observation = simulation.start(0)
        environment.reset(0)
        place = state.memory - observation[2:4] + [distance, 0.0]
        model.geom("target").pos[:2] = place
        _, reward, _ = environment.step(np.zeros(2))
        state = jax.tree.map(jnp.asarray, state._replace(memory=place))
        ours = step(state, jnp.zeros(2))
        assert float(ours.reward) == reward
        paid.append(reward)
    assert paid == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    simulation.close()
    environment.close()
