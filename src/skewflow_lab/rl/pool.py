"""Many simulations of one task that advance together in C++ (EnvPool)."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ..runs.files import RunError
from .tasks import require_simulators, spec_of

Rows = Float[np.ndarray, "n size"]
LARGEST_SEED = 2**31 - 1
"""EnvPool takes 32-bit seeds with a sign."""


class Pool:
    """Simulations side by side; the g-th start of a slot depends on its seed and g only.

    A slot draws its starts from one stream of random numbers, from which no step draws.

    Args:
        task: The name of the task.
        seeds: One for each slot. Slots of equal seeds have equal starts.
        threads: Threads that simulate; they change no number.
    """

    def __init__(self, task: str, seeds: Sequence[int], threads: int) -> None:
        require_envpool()
        spec = spec_of(task)
        self.task, self.seeds, self.threads, self.alive = task, tuple(seeds), threads, spec.alive
        self._spec, self._starts = spec, 0
        self._make()
        space = self._pool.action_space
        self.low, self.high = space.low.astype(np.float64), space.high.astype(np.float64)

    def _make(self) -> None:
        import envpool

        self._starts = 0
        self._pool: Any = envpool.make(
            self._spec.envpool,
            env_type="gymnasium",
            num_envs=len(self.seeds),
            num_threads=min(self.threads, len(self.seeds)),
            seed=[seed & LARGEST_SEED for seed in self.seeds],
        )

    def start(self, number: int) -> Rows:
        """Begin episode `number`, from 0, in all slots; the first observations."""
        if self._starts > number:
            self._pool.close()
            self._make()
        while self._starts <= number:
            found, _ = self._pool.reset()
            self._starts += 1
        return self._flat(found)

    def step(
        self, slots: Int[np.ndarray, " n"], actions: Rows
    ) -> tuple[Rows, Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Advance some slots: their observations, rewards, and whether their episodes are over."""
        found, rewards, terminated, truncated, _ = self._pool.step(actions, slots)
        return self._flat(found), rewards.astype(np.float64), terminated | truncated

    def close(self) -> None:
        """End the threads and give the memory back."""
        self._pool.close()

    def _flat(self, found: Any) -> Rows:
        """The observations as rows, in the order of the original environment."""
        if isinstance(found, dict):
            found = np.concatenate([part.reshape(len(part), -1) for part in found.values()], axis=1)
        rows: Rows = found if self._spec.kept is None else found[:, self._spec.kept]
        return rows


def require_envpool(what: str = "--backend envpool") -> None:
    """Raise a `RunError` that says what to install, if anything."""
    require_simulators()
    if find_spec("envpool") is None:
        raise RunError(
            f"{what} needs envpool, of the extra `rl`: pip install 'skewflow[rl]'. "
            "--backend processes does without."
        )
