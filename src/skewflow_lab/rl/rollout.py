"""Episodes as an objective: parameters of a policy in, a return out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skewflow.errors import ShapeError
from skewflow.es import Moments, Objective, Outcome
from skewflow.es.objective import Params

from .policies import make_policy
from .tasks import Environment, make


@dataclass
class Rollout(Objective):
    """The return of one episode of a task.

    Args:
        task: Its name; `tasks.make` makes the simulation when the first episode begins.
        horizon: Episodes end after as many steps at the latest.
        make: Makes the simulation of a task, for other tasks than ours.
        alive_part: Part of the bonus for being alive that training keeps.
        fixed: Parameters of the policy that are not trained.
    """

    task: str
    horizon: int = 1000
    make: Callable[[str], Environment] = make
    alive_part: float = 0.0
    fixed: Params = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._environment: Environment | None = None

    def evaluate(self, params: Params, seed: int, moments: Moments | None) -> Outcome:
        """The return less what training does not keep of the bonus, and what was observed."""
        total, observed = self.episode(params, seed, moments)
        steps = len(observed)
        unpaid = steps * (1.0 - self.alive_part) * self.simulation().alive
        return Outcome(total - unpaid, steps, Moments.of(observed))

    def score(self, params: Params, seed: int, moments: Moments | None) -> Outcome:
        """The return."""
        total, observed = self.episode(params, seed, moments)
        return Outcome(total, len(observed))

    def simulation(self) -> Environment:
        """The simulation, made when it is first needed."""
        if self._environment is None:
            self._environment = self.make(self.task)
        return self._environment

    def episode(
        self,
        params: Params,
        seed: int,
        moments: Moments | None,
        on_step: Callable[[int, float], None] = lambda step, total: None,
    ) -> tuple[float, np.ndarray]:
        """The return, and the observations that were acted upon.

        Args:
            params: Of the policy.
            seed: Of the simulation.
            moments: What the policy normalises its observations by.
            on_step: Called before each step with its number and the return so far.
        """
        environment, policy = self.simulation(), make_policy({**self.fixed, **params}, moments)
        low, high = environment.low, environment.high
        observed = np.empty((self.horizon, environment.observation_size))
        observation, total, over, t = environment.reset(seed), 0.0, False, 0
        while not over and t < self.horizon:
            if observation.shape != observed.shape[1:]:
                raise ShapeError(
                    f"a task must keep the size of its observations: {self.task} has "
                    f"{observed.shape[1]}, and gave an observation of shape {observation.shape} at "
                    f"step {t}. Pad them to one size."
                )
            on_step(t, total)
            observed[t] = observation
            action = np.minimum(np.maximum(policy.act(observation), low), high)
            observation, reward, over = environment.step(action)
            total += reward
            t += 1
        return total, observed[:t]

    def __getstate__(self) -> dict[str, Any]:
        """For other processes, which make a simulation of their own."""
        return {**self.__dict__, "_environment": None}
