"""Where the episodes of a batch begin: it depends only on seeds, so it can be made ahead."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .mjx_tasks import Simulation, State

Seeds = Sequence[Sequence[Sequence[int]]]
"""Starts by strategy, direction and evaluation."""


class Starts(NamedTuple):
    """The states and what is observed in them, in float32: (strategies, directions, seeds, ...)."""

    state: State
    observation: np.ndarray

    def of(self, strategies: Sequence[int]) -> "Starts":
        """Those of some strategies, in this order."""
        which = np.array(strategies)
        return Starts(State(*(x[which] for x in self.state)), self.observation[which])


def make_starts(simulation: Simulation, seeds: Seeds) -> Starts:
    """Reset the simulation once for each seed; several strategies may share theirs."""
    numbers = np.array(seeds)
    once, at = np.unique(numbers, return_inverse=True)
    at = at.reshape(numbers.shape)
    found = [simulation.start(int(seed)) for seed in once]

    def spread(rows: list[np.ndarray]) -> np.ndarray:
        wide: np.ndarray = np.stack(rows).astype(np.float32)[at]
        return wide

    parts = zip(*(state for state, _ in found), strict=True)
    return Starts(State(*(spread(list(part)) for part in parts)), spread([o for _, o in found]))
