"""Scores of several policies at once, so that all worker processes have something to do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skewflow.es import Generation, Objective, Outcome, Task, Workers


@dataclass(frozen=True)
class Centres(Generation):
    """The centres of several generations, as one; a task's direction says which of them it is.

    Args:
        parts: The generations.
    """

    parts: tuple[Generation, ...] = ()

    @classmethod
    def of(cls, generations: Sequence[Generation]) -> "Centres":
        """Those tasks of the generations that are scores."""
        tasks: list[Task] = []
        for j, generation in enumerate(generations):
            for task in generation.tasks:
                if task.sign == 0:
                    tasks.append(Task(len(tasks), j, 0, task.seeds))
        parts = tuple(replace(generation, tasks=()) for generation in generations)
        first = parts[0]
        return cls(
            first.number, first.seed, first.sigma, {}, frozenset(), None, tuple(tasks), parts=parts
        )

    def score(self, workers: Workers) -> list[list[Outcome]]:
        """The scores of each generation."""
        found: list[list[Outcome]] = [[] for _ in self.parts]
        for task, outcome in zip(self.tasks, workers.evaluate(self), strict=True):
            found[task.direction].append(outcome)
        return found

    def evaluate(self, objective: Objective, task: Task) -> Outcome:
        """Score one of the centres."""
        return self.parts[task.direction].evaluate(objective, task)
