"""All episodes of a generation at once, in this process: policies and EnvPool in lockstep."""

from collections.abc import Generator, Sequence

import numpy as np

from skewflow.errors import NonFiniteReturnError
from skewflow.es import Generation, Moments, Outcome, Task, Workers
from skewflow.es.objective import is_finite

from .lockstep import Lockstep
from .pool import Pool
from .rollout import Rollout


class PoolWorkers(Workers):
    """Evaluates all tasks of a generation in lockstep (Sec. 6.1).

    Each episode has a slot of a pool of simulations. Episode g of a slot begins in the g-th start
    of the slot's seed, whatever ran before, so a resumed run gives the same bits, with any number
    of threads. A finished episode leaves the batch, and the others do not wait for it.

    Args:
        rollout: The task, its horizon, and what training keeps of the bonus for being alive.
        first: The tasks of generation 0, all that a generation can have. Their seeds are those of
            the slots.
        threads: Threads that simulate.
    """

    def __init__(self, rollout: Rollout, first: Sequence[Task], threads: int) -> None:
        self._rollout = rollout
        ends = np.cumsum([len(task.seeds) for task in first])
        self._slots = [
            list(range(end - len(task.seeds), end))
            for task, end in zip(first, ends.tolist(), strict=True)
        ]
        seeds = [seed for task in first for seed in task.seeds]
        self._pool = Pool(rollout.task, seeds, threads)

    def _outcomes(
        self, generation: Generation, tasks: Sequence[Task]
    ) -> Generator[tuple[Task, Outcome], None, None]:
        of_slot = np.zeros(len(self._pool.seeds), dtype=np.int64)
        for member, task in enumerate(tasks):
            of_slot[self._slots[task.number]] = member
        members = [{**self._rollout.fixed, **generation.params(task)} for task in tasks]
        low, high = self._pool.low, self._pool.high
        policies = Lockstep(members, of_slot, generation.moments, low, high)
        used = [slot for task in tasks for slot in self._slots[task.number]]
        totals, steps = self._run(policies, np.array(sorted(used), np.int32), generation.number)
        unpaid = (1.0 - self._rollout.alive_part) * self._pool.alive
        for task in tasks:
            slots = self._slots[task.number]
            values = totals[slots] - unpaid * steps[slots] * (task.sign != 0)
            observed: Moments | None = None
            for slot in slots if task.sign else ():
                own = policies.observed(slot)
                observed = own if observed is None else observed.merge(own)
            value = float(values.mean())
            if not is_finite(value):
                raise NonFiniteReturnError(
                    f"returns must be finite numbers: got {value!r} {generation.name(task)} of "
                    f"{self._rollout.task}. Nothing was changed. Take a smaller sigma or step."
                )
            yield task, Outcome(value, int(steps[slots].sum()), observed)

    def _run(
        self, policies: Lockstep, slots: np.ndarray, number: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The return and the length of the episode in each slot."""
        totals, steps = np.zeros((2, len(self._pool.seeds)))
        observations = self._pool.start(number)[slots]
        for _ in range(self._rollout.horizon):
            actions = policies.act(slots, observations)
            observations, rewards, over = self._pool.step(slots, actions)
            totals[slots] += rewards
            steps[slots] += 1
            if over.any():
                slots, observations = slots[~over], observations[~over]
                if not len(slots):
                    break
        return totals, steps

    def close(self) -> None:
        """Give the memory of the simulations back."""
        self._pool.close()
