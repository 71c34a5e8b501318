"""Simulations that are wrong, or whose return is known, for worker processes to import."""

import numpy as np

from skewflow_lab.rl.tasks import Environment


class Counter(Environment):
    """Observes (seed, step); pays the first entry of the action, and one for being alive."""

    observation_size = 2
    low, high = np.full(1, -2.0), np.full(1, 2.0)
    alive = 1.0
    length = 5

    def reset(self, seed):
        self.seed, self.t, self.closed = seed, 0, False
        return np.array([seed, 0.0])

    def step(self, action):
        self.t += 1
        return np.array([self.seed, self.t]), 1.0 + action[0], self.t == self.length

    def close(self):
        self.closed = True


class Growing(Counter):
    """Gives more and more to observe."""

    def step(self, action):
        _, reward, over = super().step(action)
        return np.zeros(2 + self.t // 3), reward, over


class Broken(Counter):
    """Pays NaN."""

    def step(self, action):
        observation, _, over = super().step(action)
        return observation, float("nan"), over


def counter(task):
    return Counter()


def growing(task):
    return Growing()


def broken(task):
    return Broken()
