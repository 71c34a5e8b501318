"""How a policy moves: upright, on which foot, how far, at what power (Sec. 6.1 speaks of gaits)."""

from typing import Any

import numpy as np

from .tasks import Environment

FEET = {
    "HalfCheetah": ("bfoot", "ffoot"),
    "Walker2d": ("foot", "foot_left"),
    "Humanoid": ("right_foot", "left_foot"),
}
"""The bodies that step, by the beginning of the task's name; other tasks walk on fewer than two."""
UPRIGHT = 0.5
"""Cosine of the angle between a torso that counts as upright and the vertical: 60 degrees."""


class Gait:
    """Statistics of one episode of a task with a torso.

    Args:
        task: The name of the task.
        environment: Its original environment.
    """

    def __init__(self, task: str, environment: Environment) -> None:
        self._environment = environment
        model = environment.model
        self._torso = _body(model, "torso")
        names = next((feet for name, feet in FEET.items() if task.startswith(name)), ())
        self._feet = [_body(model, name) for name in names]
        self._steps = self._upright = self._changes = 0
        self._energy, self._start, self._last = 0.0, float("nan"), -1

    def watch(self, step: int, total: float) -> None:
        """Take note of the state before a step."""
        data = self._environment.data
        place = float(data.xpos[self._torso][0])
        self._start = place if step == 0 else self._start
        self._steps += 1
        self._upright += data.xmat[self._torso][8] > UPRIGHT
        power = np.abs(data.actuator_force * data.actuator_velocity).sum()
        self._energy += float(power) * self._environment.seconds
        standing = [n for n, foot in enumerate(self._feet) if self._touches(foot)]
        if len(standing) == 1:
            self._changes += self._last not in (-1, standing[0])
            self._last = standing[0]

    def result(self) -> dict[str, float]:
        """The statistics: in parts of the time, metres, watts, and changes of foot per second."""
        seconds = self._steps * self._environment.seconds
        place = float(self._environment.data.xpos[self._torso][0])
        found = {
            "upright": self._upright / self._steps,
            "distance": place - self._start,
            "power": self._energy / seconds,
        }
        if self._feet:
            found["foot changes"] = self._changes / seconds
        return found

    def _touches(self, body: int) -> bool:
        """Whether a body touches the world."""
        model, data = self._environment.model, self._environment.data
        for contact in data.contact[: data.ncon]:
            bodies = model.geom_bodyid[contact.geom1], model.geom_bodyid[contact.geom2]
            if 0 in bodies and body in bodies:
                return True
        return False


def has_torso(environment: Environment) -> bool:
    """Whether the task is about a body that moves."""
    return _body(environment.model, "torso") >= 0


def _body(model: Any, name: str) -> int:
    import mujoco  # of the extra `rl`

    found: int = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
    return found
