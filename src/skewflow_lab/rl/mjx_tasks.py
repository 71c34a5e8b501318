"""The six tasks in JAX: the physics by MJX, observations, rewards and ends as in their own code.

An episode begins where the CPU environment begins it with the same seed: `Simulation.start` resets
that environment and copies its state. All that follows is a pure function of state and action.
"""

from abc import ABC, abstractmethod
from copy import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax import Array
from mujoco import mjx

from .tasks import Environment, make


class State(NamedTuple):
    """What an episode carries from step to step.

    Args:
        qpos: Positions.
        qvel: Velocities.
        warmstart: Where the solver of the contacts begins.
        memory: What the task remembers besides: a target, or where the centre of mass was.
    """

    qpos: Array
    qvel: Array
    warmstart: Array
    memory: Array


class Step(NamedTuple):
    """What a step gives."""

    state: State
    observation: Array
    reward: Array
    over: Array


class Simulation(ABC):
    """One task as pure functions of one episode; `jax.vmap` makes them many.

    Args:
        task: Its name.
        fast: With the cheaper model that policies are trained on, see `speed_up`. If not, with the
            environment's own, but for what MJX cannot load: a solver by the Gauss-Seidel method.
    """

    ends = False
    """Whether an episode may be over before its horizon."""

    def __init__(self, task: str, *, fast: bool = True) -> None:
        self._environment = make(task)
        self.observation_size = self._environment.observation_size
        self.low, self.high = self._environment.low, self._environment.high
        self.alive = self._environment.alive
        model, _, self.frames = simulator(self._environment)
        self.mj = copy(model)
        self.dt = self.frames * self.mj.opt.timestep
        self.mj.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        if self.mj.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_CONTACT:
            self.mj.geom_contype[:] = self.mj.geom_conaffinity[:] = 0  # MJX knows not all pairs
        if fast:
            self.speed_up(self.mj)
        self.model = mjx.put_model(self.mj, impl="jax")
        self._blank = mjx.make_data(self.mj, impl="jax")

    def start(self, seed: int) -> tuple[State, np.ndarray]:
        """The state and the observation with which the CPU environment begins an episode."""
        observation = self._environment.reset(seed)
        model, data, _ = simulator(self._environment)
        memory = np.asarray(self.memory(model, data), dtype=np.float64)
        return State(*(x.copy() for x in (data.qpos, data.qvel, data.qacc_warmstart, memory))), (
            observation
        )

    def step(self, state: State, action: Array) -> Step:
        """Act for one step of the environment."""
        data = self._blank.replace(
            qpos=state.qpos, qvel=state.qvel, qacc_warmstart=state.warmstart, ctrl=action
        )
        data = jax.lax.fori_loop(0, self.frames, self._frame, data)
        return self.outcome(state, data, action)

    def _frame(self, _: Array, data: Any) -> Any:
        # In double precision MJX widens the integers of tendons; a loop must keep its types.
        after = mjx.step(self.model, data)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), after, data)

    def close(self) -> None:
        """Give the memory of the CPU environment back."""
        self._environment.close()

    @staticmethod
    def speed_up(model: Any) -> None:
        """Change a model for training: four iterations of the contact solver, not a hundred.

        All episodes of a batch wait for the slowest one.
        """
        model.opt.iterations, model.opt.ls_iterations = 4, 8

    def memory(self, model: Any, data: Any) -> Any:
        """`State.memory` at the start of an episode, from the CPU environment."""
        return ()

    @abstractmethod
    def outcome(self, before: State, data: Any, action: Array) -> Step:
        """What a step gives, from MJX's data after its last frame.

        As in C, all that MJX derives from positions is of the time *before* the last frame. For
        gymnasium this is what is observed; dm_control recomputes it.
        """


def simulator(environment: Environment) -> tuple[Any, Any, int]:
    """MuJoCo's model and data behind an environment, and the frames of one of its steps."""
    env: Any = environment._env  # type: ignore[attr-defined]
    if hasattr(env, "physics"):
        return env.physics.model.ptr, env.physics.data.ptr, env._n_sub_steps
    return env.unwrapped.model, env.unwrapped.data, env.unwrapped.frame_skip


def floor_touches(model: Any, *names: str) -> None:
    """Leave no contacts but those of the floor with the geometries of these names."""
    model.geom_contype[:] = 0
    model.geom_conaffinity[:] = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    for name in names:
        model.geom(name).contype = 1


def _after(data: Any, memory: Array) -> State:
    return State(data.qpos, data.qvel, data.qacc_warmstart, memory)


class _Humanoid(Simulation):
    """Humanoid-v5."""

    ends = True

    @staticmethod
    def speed_up(model: Any) -> None:
        """Euler's method, two iterations, and no contacts but those of the legs.

        An episode is over when the torso is below 1 m, so that only shins and feet can reach the
        floor. The legs touch each other, too: policies that learn without that let one leg pass
        through the other, and fall in the environment's own model. One iteration is too few: with
        it the returns of perturbed policies hardly follow those of that model.
        """
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
        model.opt.iterations, model.opt.ls_iterations = 2, 4
        floor_touches(model, "right_shin1", "right_foot", "left_shin1", "left_foot")
        for part in ("thigh1", "shin1", "foot"):
            model.geom(f"right_{part}").contype |= 2
            model.geom(f"left_{part}").conaffinity |= 2

    def memory(self, model: Any, data: Any) -> Any:
        """Where the centre of mass is, along x."""
        return (np.average(data.xipos[:, 0], weights=model.body_mass),)

    def outcome(self, before: State, data: Any, action: Array) -> Step:
        """Forwards, upright, with little effort and soft contacts."""
        data = mjx.rne_postconstraint(self.model, data)
        mass = self.model.body_mass
        x = (mass @ data.xipos[:, 0] / mass.sum())[None]
        inside = data._impl
        observation = jnp.concatenate(
            [
                data.qpos[2:],
                data.qvel,
                inside.cinert[1:].ravel(),
                data.cvel[1:].ravel(),
                data.qfrc_actuator[6:],
                inside.cfrc_ext[1:].ravel(),
            ]
        )
        healthy = (data.qpos[2] > 1.0) & (data.qpos[2] < 2.0)
        contact = jnp.minimum(5e-7 * jnp.square(inside.cfrc_ext).sum(), 10.0)
        forward = 1.25 * (x - before.memory)[0] / self.dt
        reward = forward + 5.0 * healthy - 0.1 * jnp.square(action).sum() - contact
        return Step(_after(data, x), observation, reward, ~healthy)


class _Walker2d(Simulation):
    """Walker2d-v5."""

    ends = True

    @staticmethod
    def speed_up(model: Any) -> None:
        """As for all, and Euler's method in place of the four evaluations of Runge and Kutta.

        An episode is over when the torso is below 0.8 m or leans by more than 1 rad: thighs and
        torso do not reach the floor.
        """
        Simulation.speed_up(model)
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
        floor_touches(model, "leg_geom", "foot_geom", "leg_left_geom", "foot_left_geom")

    def outcome(self, before: State, data: Any, action: Array) -> Step:
        """Forwards and upright, with little effort."""
        observation = jnp.concatenate([data.qpos[1:], jnp.clip(data.qvel, -10.0, 10.0)])
        z, angle = data.qpos[1], data.qpos[2]
        healthy = (z > 0.8) & (z < 2.0) & (angle > -1.0) & (angle < 1.0)
        forward = (data.qpos[0] - before.qpos[0]) / self.dt
        reward = forward + 1.0 * healthy - 1e-3 * jnp.square(action).sum()
        return Step(_after(data, before.memory), observation, reward, ~healthy)


class _HalfCheetah(Simulation):
    """HalfCheetah-v5."""

    def outcome(self, before: State, data: Any, action: Array) -> Step:
        """Forwards, with little effort."""
        observation = jnp.concatenate([data.qpos[1:], data.qvel])
        forward = (data.qpos[0] - before.qpos[0]) / self.dt
        reward = forward - 0.1 * jnp.square(action).sum()
        return Step(_after(data, before.memory), observation, reward, jnp.array(False))


class _Reacher(Simulation):
    """The task "hard" of dm_control's reacher; the memory is where the target is."""

    def memory(self, model: Any, data: Any) -> Any:
        """The target's place in the plane."""
        return data.geom("target").xpos[:2]

    def outcome(self, before: State, data: Any, action: Array) -> Step:
        """One while the finger is at the target."""
        data = mjx.kinematics(self.model, data)
        to_target = before.memory - data.geom_xpos[self.mj.geom("finger").id, :2]
        observation = jnp.concatenate([data.qpos, to_target, data.qvel])
        near = self.mj.geom("finger").size[0] + 0.015
        reward = jnp.where(jnp.linalg.norm(to_target) <= near, 1.0, 0.0)
        return Step(_after(data, before.memory), observation, reward, jnp.array(False))


class _Hopper(Simulation):
    """The task "stand" of dm_control's hopper."""

    def outcome(self, before: State, data: Any, action: Array) -> Step:
        """The torso high over the foot, with little effort."""
        touch = [int(self.mj.sensor(name).adr[0]) for name in ("touch_toe", "touch_heel")]
        felt = jnp.log1p(data.sensordata[np.array(touch)])  # of the last frame, as in dm_control
        data = mjx.kinematics(self.model, data)
        torso, foot = self.mj.body("torso").id, self.mj.body("foot").id
        height = data.xipos[torso, 2] - data.xipos[foot, 2]
        standing = (height >= 0.6) & (height <= 2.0)
        small = jnp.maximum(1.0 - jnp.square(action), 0.0).mean()
        observation = jnp.concatenate([data.qpos[1:], data.qvel, felt])
        reward = standing * (small + 4.0) / 5.0
        return Step(_after(data, before.memory), observation, reward, jnp.array(False))


class _Swimmer(Simulation):
    """The swimmer of 15 links of dm_control; the memory is where the target is."""

    def __init__(self, task: str, *, fast: bool = True) -> None:
        super().__init__(task, fast=fast)
        # What its sensors measure is derived once a step below, not in each of its 15 frames.
        off = self.mj.opt.disableflags | mujoco.mjtDisableBit.mjDSBL_SENSOR
        self.mj.opt.disableflags = off
        self.model = mjx.put_model(self.mj, impl="jax")

    def memory(self, model: Any, data: Any) -> Any:
        """The target's place."""
        return data.geom("target").xpos

    def outcome(self, before: State, data: Any, action: Array) -> Step:
        """The nearer the nose to the target, the better."""
        data = mjx.com_vel(self.model, mjx.com_pos(self.model, mjx.kinematics(self.model, data)))
        away = before.memory - data.geom_xpos[self.mj.geom("nose").id]
        to_target = (away @ data.xmat[self.mj.body("head").id].reshape(3, 3))[:2]
        body = self.mj.site_bodyid
        turn, move = jnp.split(data.cvel[body], 2, axis=1)
        arm = data.site_xpos - data.subtree_com[self.mj.body_rootid[body]]
        axes = data.site_xmat.reshape(-1, 3, 3)
        move = jnp.einsum("sij,si->sj", axes, move - jnp.cross(arm, turn))
        turn = jnp.einsum("sij,si->sj", axes, turn)
        velocities = jnp.concatenate([move[:, :2], turn[:, 2:]], axis=1)
        observation = jnp.concatenate([data.qpos[3:], to_target, velocities.ravel()])
        size = self.mj.geom("target").size[0]
        outside = jnp.maximum(jnp.linalg.norm(to_target) - size, 0.0) / (5 * size)
        reward = 1.0 / (jnp.square(3.0 * outside) + 1.0)  # a tenth at the margin
        return Step(_after(data, before.memory), observation, reward, jnp.array(False))


_SIMULATIONS: dict[str, type[Simulation]] = {
    "Humanoid": _Humanoid,
    "Walker2d": _Walker2d,
    "HalfCheetah": _HalfCheetah,
    "reacher-hard": _Reacher,
    "hopper-stand": _Hopper,
    "swimmer15": _Swimmer,
}


def simulate(task: str, *, fast: bool = True) -> Simulation:
    """The simulation of a task; see `Simulation`."""
    return _SIMULATIONS[task](task, fast=fast)
