"""The six control tasks of Sec. 6.1 under one interface; rewards and ends are their own."""

import os
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from ..runs.environment import version
from ..runs.files import RunError

TaskName = Literal[
    "Humanoid",
    "Walker2d",
    "HalfCheetah",
    "reacher-hard",
    "hopper-stand",
    "swimmer15",
    "HalfCheetah-positions",
    "hopper-stand-positions",
]
TASKS = get_args(TaskName)
PAPER_TASKS: tuple[TaskName, ...] = TASKS[:6]
"""Those of the paper. The others hide the velocities, so that a policy needs a memory."""
NEEDED = ("mujoco", "gymnasium", "dm_control")

Vector = Float[np.ndarray, " n"]


class Environment(ABC):
    """One simulation; an episode depends only on its seed and the actions.

    Args:
        observation_size: Entries of an observation.
        low: Least action, by entry.
        high: Largest action.
        alive: The part of each step's reward that is paid for not having fallen. Training subtracts
            it, as Mania et al. (2018) do, or a part of it; or standing still is
            learned. Scores do not.
        seconds: Of simulated time that a step takes.
        model: MuJoCo's, to be drawn.
        data: The same.
    """

    observation_size: int
    low: Vector
    high: Vector
    alive: float = 0.0
    seconds: float
    model: Any
    data: Any

    @abstractmethod
    def reset(self, seed: int) -> Vector:
        """Begin an episode; the first observation."""

    @abstractmethod
    def step(self, action: Vector) -> tuple[Vector, float, bool]:
        """The next observation, the reward, and whether the episode is over."""

    @abstractmethod
    def close(self) -> None:
        """Give the simulator's memory back."""


Kept = tuple[int, ...] | None
"""The entries of an observation that a task shows; None for all."""


class _Gymnasium(Environment):
    def __init__(self, name: str, kept: Kept) -> None:
        import gymnasium

        self._env: Any = gymnasium.make(name, disable_env_checker=True)
        (size,) = self._env.observation_space.shape
        self._kept, self.observation_size = _entries(kept), size if kept is None else len(kept)
        space = self._env.action_space
        self.low, self.high = space.low.astype(np.float64), space.high.astype(np.float64)
        inner = self._env.unwrapped
        self.seconds, self.model, self.data = inner.dt, inner.model, inner.data

    def reset(self, seed: int) -> Vector:
        observation: Vector = self._env.reset(seed=seed)[0][self._kept]
        return observation

    def step(self, action: Vector) -> tuple[Vector, float, bool]:
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return observation[self._kept], float(reward), terminated or truncated

    def close(self) -> None:
        self._env.close()


class _DmControl(Environment):
    def __init__(self, name: str, kept: Kept) -> None:
        from dm_control import suite

        domain, _, task = name.partition(" ")

        self._env: Any = suite.load(domain, task, environment_kwargs={"flat_observation": True})
        (shape,) = (spec.shape for spec in self._env.observation_spec().values())
        (size,) = shape
        self._kept, self.observation_size = _entries(kept), size if kept is None else len(kept)
        spec = self._env.action_spec()
        self.low, self.high = spec.minimum, spec.maximum
        physics = self._env.physics
        self.model, self.data = physics.model.ptr, physics.data.ptr
        self.seconds = self._env.control_timestep()

    def reset(self, seed: int) -> Vector:
        self._env.task.random.seed(seed)
        return self._flat(self._env.reset())

    def step(self, action: Vector) -> tuple[Vector, float, bool]:
        found = self._env.step(action)
        return self._flat(found), float(found.reward), found.last()

    def close(self) -> None:
        self._env.close()

    def _flat(self, found: Any) -> Vector:
        (observation,) = found.observation.values()
        shown: Vector = observation[self._kept]
        return shown


def _entries(kept: Kept) -> slice | list[int]:
    return slice(None) if kept is None else list(kept)


@dataclass(frozen=True)
class Spec:
    """Where a task comes from.

    Args:
        suite: The package of the original environment.
        name: Its name there.
        envpool: Its name in EnvPool.
        alive: The part of each step's reward that is paid for not having fallen.
        kept: The entries of an observation that are shown.
    """

    suite: type[_Gymnasium] | type[_DmControl]
    name: str
    envpool: str
    alive: float = 0.0
    kept: Kept = None


_CHEETAH = Spec(_Gymnasium, "HalfCheetah-v5", "HalfCheetah-v5")
_HOPPER = Spec(_DmControl, "hopper stand", "HopperStand-v1")
_SPECS = {
    "Humanoid": Spec(_Gymnasium, "Humanoid-v5", "Humanoid-v5", alive=5.0),
    "Walker2d": Spec(_Gymnasium, "Walker2d-v5", "Walker2d-v5", alive=1.0),
    "HalfCheetah": _CHEETAH,
    "reacher-hard": Spec(_DmControl, "reacher hard", "ReacherHard-v1"),
    "hopper-stand": _HOPPER,
    "swimmer15": Spec(_DmControl, "swimmer swimmer15", "SwimmerSwimmer15-v1"),
    "HalfCheetah-positions": replace(_CHEETAH, kept=tuple(range(8))),
    "hopper-stand-positions": replace(_HOPPER, kept=(*range(6), 13, 14)),  # and touch
}


def spec_of(task: str) -> Spec:
    """Where a task comes from.

    Raises:
        RunError: If there is no such task.
    """
    if task not in _SPECS:
        raise RunError(f"`task` must be one of {', '.join(TASKS)}: got {task!r}.")
    return _SPECS[task]


def make(task: str) -> Environment:
    """The simulation of a task.

    Raises:
        RunError: If there is no such task, or the simulators are not installed.
    """
    spec = spec_of(task)
    require_simulators()
    os.environ.setdefault("MUJOCO_GL", "disabled")  # or dm_control looks for a display
    import mujoco

    # MuJoCo would print and write a file into the working directory. What it says of a model as it
    # is loaded concerns the authors of the model.
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        environment = spec.suite(spec.name, spec.kept)
    finally:
        mujoco.set_mju_user_warning(_warn)
    environment.alive = spec.alive
    return environment


def _warn(text: str) -> None:
    warnings.warn(f"MuJoCo: {text}", RuntimeWarning, stacklevel=2)


def missing_simulators() -> list[str]:
    """The packages of the extra `rl` that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def require_simulators() -> None:
    """Raise a `RunError` that says what to install, if anything."""
    missing = missing_simulators()
    if missing:
        raise RunError(
            f"the control tasks need {' and '.join(missing)}, of the extra `rl`: "
            "pip install 'skewflow[rl]'"
        )


def versions(mjx: bool) -> dict[str, str]:
    """The versions of the simulators; with MJX also that of JAX, and the device that it uses."""
    found = {name: version(name) for name in (*NEEDED, "envpool") if find_spec(name)}
    if not mjx:
        return found
    import jax

    found |= {name: version(name) for name in ("mujoco-mjx", "jax")}
    return {"simulates on": jax.devices()[0].device_kind, **found}


def require_mjx() -> None:
    """Raise a `RunError` that says what to install for `--backend mjx`, if anything."""
    if find_spec("jax") is None or find_spec("mujoco.mjx") is None:
        raise RunError(
            "--backend mjx needs jax and mujoco-mjx, of the extra `rl-gpu`: "
            "pip install 'skewflow[rl,rl-gpu]'"
        )
