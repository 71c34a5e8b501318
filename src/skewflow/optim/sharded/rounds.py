"""Runs the steps of several weights side by side while they wait for sums over processes.

A step is a generator: it yields the parts of sums over processes, and receives the sums. All steps
of an optimiser advance from one sum to the next together, so a round takes one all-reduce for all
weights of a mesh.
"""

from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch import distributed as dist

REFUSED = 2.0**20
"""Added to the last sum of the first round by a process that refuses the step."""

Groups: TypeAlias = tuple[Any, ...]
"""Groups of processes, `torch.distributed.ProcessGroup`, whose sums follow one another."""


@dataclass(frozen=True)
class Sum:
    """A part of a sum over the processes of each of some groups.

    Args:
        part: What this process adds.
        groups: The groups; without any the part is the sum.
    """

    part: Tensor
    groups: Groups


Request: TypeAlias = Sequence[Sum]
Steps: TypeAlias = Generator[Request, Sequence[Tensor], Any]
"""The steps of one weight; their return value is the result."""


def add_up(requests: Sequence[Request]) -> list[list[Tensor]]:
    """The sums, by one all-reduce for all parts of equal groups, dtype and device.

    Raises:
        RuntimeError: If another process has ended.
    """
    try:
        return _add_up(requests)
    except RuntimeError as error:
        raise RuntimeError(
            "the sums of a step of sharded weights need every process, and an all-reduce failed: "
            f"{str(error).splitlines()[0]} Most likely a process has ended, or has gradients for "
            "other weights, and its log says why. Start all of them again from the last checkpoint."
        ) from error


def _add_up(requests: Sequence[Request]) -> list[list[Tensor]]:
    sums = [[s.part for s in request] for request in requests]
    buckets: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for i, request in enumerate(requests):
        for j, s in enumerate(request):
            if s.groups:
                buckets[(s.groups, s.part.dtype, s.part.device)].append((i, j))
    started = []
    for (groups, *_), places in buckets.items():
        flat = torch.cat([sums[i][j].reshape(-1) for i, j in places])
        first = dist.all_reduce(flat, group=groups[0], async_op=True)
        started.append((groups[1:], places, flat, first))
    for others, places, flat, first in started:
        first.wait()
        for group in others:
            dist.all_reduce(flat, group=group)
        parts = torch.split(flat, [sums[i][j].numel() for i, j in places])
        for (i, j), part in zip(places, parts, strict=True):
            sums[i][j] = part.view(sums[i][j].shape)
    return sums


class Rounds:
    """Runs the steps that executors submit through their rounds.

    Attributes:
        waiting: Steps that wait for a sum, with their parts of it, by number.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[Steps, Request]] = {}
        self._results: dict[int, Any] = {}
        self._next, self._begun = 0, False

    def add(self, steps: Steps) -> int:
        """Begin such steps, up to their first sum; returns their number, which `result` takes."""
        self.waiting[self._next] = steps, next(steps)
        self._next += 1
        return self._next - 1

    def begin(self) -> None:
        """The first round, after which steps may refuse; nothing has been written then."""
        if not self._begun:
            self._begun = True
            self._round()

    def refuse(self) -> None:
        """Take part in the first round, so that the other processes refuse the step, too."""
        if self.waiting and not self._begun:
            self._begun = True
            requests = [request for _, request in self.waiting.values()]
            for request in requests:
                request[-1].part.add_(REFUSED)
            add_up(requests)

    def found(self, number: int) -> Any:
        """The result of such steps if they have ended, else None."""
        return self._results.get(number)

    def result(self, number: int) -> Any:
        """The results of such steps, after the remaining rounds."""
        while self.waiting:
            self._round()
        self._begun = False
        return self._results.pop(number)

    def clear(self) -> None:
        """Drop all steps."""
        self.__init__()  # type: ignore[misc]

    def _round(self) -> None:
        numbers, pairs = [*self.waiting], [*self.waiting.values()]
        self.waiting = {}
        sums = add_up([request for _, request in pairs])
        for number, (steps, _), found in zip(numbers, pairs, sums, strict=True):
            try:
                self.waiting[number] = steps, steps.send(found)
            except StopIteration as end:
                self._results[number] = end.value


def run(all_steps: Sequence[Steps]) -> list[Any]:
    """The results of steps that are taken at once."""
    rounds = Rounds()
    numbers = [rounds.add(steps) for steps in all_steps]
    return [rounds.result(number) for number in numbers]
