"""One generation: a centre, and tasks that name the points around it by numbers alone."""

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
"""First words below the seed: directions and evaluations draw from streams of their own."""


@dataclass(frozen=True)
class Task:
    """One point to evaluate: the centre plus `sign` times sigma times a direction.

    Args:
        number: Its place in the generation.
        direction: Which direction.
        sign: 1 or -1; 0 is the centre itself, evaluated to be reported.
        seeds: One evaluation for each; the value is their mean.
    """

    number: int
    direction: int
    sign: Literal[1, -1, 0]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Generation:
    """All that an evaluation needs besides its task; it travels once to each worker.

    Directions are drawn anew from (seed, generation, direction) wherever they are needed.

    Args:
        number: Counts from 0.
        seed: Of the whole run.
        sigma: Length of a perturbation, for each entry.
        centre: The parameters.
        geodesics: The names of orthogonal parameters that are perturbed along geodesics; all
            others are perturbed in the ambient space.
        moments: What was observed before.
        tasks: The points.
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
            self._last.clear()  # both signs of a direction tend to follow each other
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
        """Do a task.

        Raises:
            NonFiniteReturnError: If the objective gave NaN, infinity or no number.
        """
        point = self.params(task)
        total, steps, observed = 0.0, 0, None
        for seed in task.seeds:
            call = objective.evaluate if task.sign else objective.score
            params = {name: p.clone() for name, p in point.items()}  # which may be changed there
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
        """Where a task is, for messages."""
        sign = {1: "plus ", -1: "minus ", 0: ""}[task.sign]
        where = "the centre" if task.sign == 0 else f"{sign}direction {task.direction}"
        return f"at {where} of generation {self.number}"

    def __getstate__(self) -> dict[str, object]:
        """For other processes, which draw their directions themselves."""
        return {**self.__dict__, "_last": {}}


def seeds_for(seed: int, generation: int, stream: int, count: int) -> tuple[int, ...]:
    """Seeds of evaluations: 32 bits each, a stream of their own for each generation."""
    sequence = np.random.SeedSequence((seed, SEEDS, generation, stream))
    return tuple(int(word) for word in sequence.generate_state(count, np.uint32))
