"""One generation: a centre, and tasks that describe the points around it by a few numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import NonFiniteReturnError
from ..geometry.geodesics import geodesic
from ..geometry.matrices import MatrixView
from ..geometry.tangent import tangent_project
from .moments import Moments
from .objective import Objective, Outcome, is_finite

NOISE, SEEDS = 0, 1
"""First words after the seed: directions and evaluations draw from separate random streams."""


@dataclass(frozen=True)
class Task:
    """A point: the centre plus `sign` times sigma times a direction (not in the paper).

    Args:
        number: Index of the task in the generation.
        direction: Index of the direction.
        sign: 1 or -1; 0 is the centre itself, whose value is only reported.
        seeds: Seeds of the evaluations; the value of the task is their mean.
    """

    number: int
    direction: int
    sign: Literal[1, -1, 0]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Generation:
    """The data that all tasks of a generation have in common (not in the paper).

    Each worker receives it once. Directions are not sent: each process draws them from (seed,
    generation, direction).

    Args:
        number: Number of the generation, from 0.
        seed: Seed of the whole run.
        sigma: Standard deviation of a perturbation, per entry.
        centre: The parameters by name.
        geodesics: Names of the orthogonal parameters that are perturbed along geodesics; all others
            are perturbed in the ambient space.
        moments: Moments of what earlier generations observed, or None.
        tasks: The points to evaluate.
    """

    number: int
    seed: int
    sigma: float
    centre: dict[str, Tensor]
    geodesics: frozenset[str]
    moments: Moments | None
    tasks: tuple[Task, ...]
    _last: dict[int, dict[str, Tensor]] = field(default_factory=dict, compare=False, repr=False)

    def direction(self, number: int) -> dict[str, Tensor]:
        """A direction: standard Gaussian, or its projection to the tangent space."""
        if number not in self._last:
            self._last.clear()  # the two signs of a direction usually follow each other
            self._last[number] = dict(self._draw(number))
        return self._last[number]

    def _draw(self, number: int) -> Iterator[tuple[str, Tensor]]:
        rng = np.random.default_rng((self.seed, NOISE, self.number, number))
        for name, p in self.centre.items():
            double = p.dtype == torch.float64
            noise = rng.standard_normal(tuple(p.shape), np.float64 if double else np.float32)
            delta = torch.from_numpy(np.asarray(noise)).to(p)
            if name in self.geodesics:
                view = MatrixView.of(p, name)
                delta = view.restore(tangent_project(view(p), view(delta)))
            yield name, delta

    def params(self, task: Task) -> dict[str, Tensor]:
        """The parameters of a task, as copies."""
        if task.sign == 0:
            return {name: p.clone() for name, p in self.centre.items()}
        t = task.sign * self.sigma
        perturbed = {}
        for name, delta in self.direction(task.direction).items():
            p = self.centre[name]
            if name in self.geodesics:
                view = MatrixView.of(p, name)
                perturbed[name] = view.restore(geodesic(view(p), view(delta), t))
            else:
                perturbed[name] = p + t * delta
        return perturbed

    def evaluate(self, objective: Objective, task: Task) -> Outcome:
        """Evaluate a task.

        Raises:
            NonFiniteReturnError: If the objective returns NaN, infinity or no number.
        """
        point = self.params(task)
        total, steps, observed = 0.0, 0, None
        for seed in task.seeds:
            call = objective.evaluate if task.sign else objective.score
            params = {name: p.clone() for name, p in point.items()}  # an objective may change them
            outcome = call(params, seed, self.moments)
            if not isinstance(outcome, Outcome):
                raise TypeError(
                    f"`Objective.{call.__name__}` must return an Outcome: got "
                    f"{type(outcome).__name__} {self.name(task)}. Return Outcome(value)."
                )
            if not is_finite(outcome.value):
                raise NonFiniteReturnError(
                    "the function must return a finite number: got "
                    f"{outcome.value!r} {self.name(task)}, seed {seed}. Nothing was changed. Give "
                    "a failed evaluation a large but finite loss, or take a smaller sigma or step."
                )
            total += outcome.value
            steps += outcome.steps
            if outcome.observed is not None:
                observed = (
                    outcome.observed if observed is None else observed.merge(outcome.observed)
                )
        return Outcome(total / len(task.seeds), steps, observed)

    def name(self, task: Task) -> str:
        """The position of a task, for messages."""
        sign = {1: "plus ", -1: "minus ", 0: ""}[task.sign]
        where = "the centre" if task.sign == 0 else f"{sign}direction {task.direction}"
        return f"at {where} of generation {self.number}"

    def __getstate__(self) -> dict[str, object]:
        """Drop the cached direction, which other processes draw themselves."""
        return {**self.__dict__, "_last": {}}


def seeds_for(seed: int, generation: int, stream: int, count: int) -> tuple[int, ...]:
    """Seeds of evaluations, 32 bits each, from a separate random stream for each generation."""
    sequence = np.random.SeedSequence((seed, SEEDS, generation, stream))
    return tuple(int(word) for word in sequence.generate_state(count, np.uint32))
