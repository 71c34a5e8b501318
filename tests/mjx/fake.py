"""A simulation in JAX whose returns are known, with the interface of `mjx_tasks.Simulation`."""

import jax.numpy as jnp
import numpy as np

from skewflow_lab.rl.mjx_tasks import State, Step


class Counter:
    """Observes (seed, step); pays the first entry of the action, and one for being alive.

    An episode is over after as many steps as its seed says; at `breaks` it gives NaN.
    """

    observation_size = 2
    low, high = np.full(1, -2.0), np.full(1, 2.0)
    alive, ends = 1.0, True

    def __init__(self, breaks=10**6):
        self.breaks = breaks

    def start(self, seed):
        length = seed % 7 + 2
        seen = np.array([length, 0.0])
        return State(seen, np.zeros(1), np.zeros(1), np.zeros(1)), seen

    def step(self, state, action):
        qpos = state.qpos + jnp.array([0.0, 1.0])
        reward = jnp.where(qpos[1] >= self.breaks, jnp.nan, 1.0 + action[0])
        return Step(state._replace(qpos=qpos), qpos, reward, qpos[1] >= qpos[0])
