"""Who evaluates: this process, or local processes that may die at any time."""

import math
import pickle
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from threading import Lock
from typing import Any

import torch

from .. import _validate
from ..errors import WorkerError
from ._process import Slot
from ._worker import RemoteError
from .generation import Generation, Task
from .objective import Objective, Outcome, PlainFunction, as_objective
from .pickling import pickled_objective

DEATHS = 3
"""A task that has taken as many workers with it, or a worker that has died as often before it was
ready, is not tried again."""

START = 600.0
"""Seconds that a worker may take to be ready, if the patience with its tasks is not longer."""


class Workers(ABC):
    """Evaluates the tasks of a generation; the outcomes come in the order of the tasks.

    A context manager: leaving it ends what it has started.
    """

    @abstractmethod
    def evaluate(
        self,
        generation: Generation,
        tasks: Sequence[Task] | None = None,
        on_task: Callable[[int], None] = lambda done: None,
    ) -> list[Outcome]:
        """Do these tasks, or all of the generation.

        Args:
            generation: Where the tasks are.
            tasks: Some of its tasks; all of them when omitted.
            on_task: Called with the number of tasks done so far whenever one is.
        """

    @abstractmethod
    def close(self) -> None:
        """End what was started; nothing is lost by it."""

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InProcess(Workers):
    """Evaluates here, one task after the other, on one thread of torch (not in the paper).

    Args:
        objective: A function of the parameters, or an `Objective`.

    Example:
        >>> from torch import nn
        >>> from skewflow.es import EvolutionStrategy
        >>> x = nn.Parameter(torch.ones(2))
        >>> sgd = torch.optim.SGD([x], lr=0.1)
        >>> strategy = EvolutionStrategy({"x": x}, [sgd], num_directions=4, sigma=0.1)
        >>> with InProcess(lambda p: p["x"].square().sum()) as workers:
        ...     record = strategy.tell(workers.evaluate(strategy.ask()))
        >>> record.steps
        8
    """

    def __init__(self, objective: PlainFunction | Objective) -> None:
        self.objective = as_objective(objective)

    def evaluate(
        self,
        generation: Generation,
        tasks: Sequence[Task] | None = None,
        on_task: Callable[[int], None] = lambda done: None,
    ) -> list[Outcome]:
        """Do these tasks, or all of the generation."""
        outcomes = []
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # as the workers do, so that the digits are theirs
        try:
            for task in generation.tasks if tasks is None else tasks:
                outcomes.append(generation.evaluate(self.objective, task))
                on_task(len(outcomes))
        finally:
            torch.set_num_threads(before)
        return outcomes

    def close(self) -> None:
        """Nothing was started."""


class LocalWorkers(Workers):
    """Processes on this machine that live as long as this object (not in the paper).

    A task's numbers go out, and its outcome comes back; the centre goes out once a generation to
    each process. The outcomes are those of one process, to the bit, whatever the number of
    processes and whichever of them die: the task of a dead one is done again, by a new one. One
    that does not answer for `patience` seconds is killed, and counts as dead. Each works on one
    thread.

    Processes are spawned: a script must guard its start by ``if __name__ == "__main__":``. The
    objective is best a function or class at the top of a module. A lambda, or a function of a
    notebook, is sent by value, which needs cloudpickle.

    If this process ends in any way, by SIGKILL too, the workers end at once, whatever they do.
    Processes that an evaluation itself has started go on.

    Args:
        objective: A function of the parameters, or an `Objective`.
        num_workers: Processes.
        patience: Seconds that one task may take, with all its evaluations. No bound by default: how
            long a function takes is its caller's to say.

    Raises:
        WorkerError: If the objective cannot be sent to another process.

    Example:
        >>> from operator import itemgetter
        >>> from skewflow.es import EvolutionStrategy
        >>> x = torch.nn.Parameter(torch.ones(1))
        >>> sgd = torch.optim.SGD([x], lr=0.1)
        >>> strategy = EvolutionStrategy({"x": x}, [sgd], num_directions=4, sigma=0.1)
        >>> with LocalWorkers(itemgetter("x"), num_workers=1) as workers:
        ...     record = strategy.tell(workers.evaluate(strategy.ask()))
        >>> record.steps
        8
    """

    def __init__(
        self,
        objective: PlainFunction | Objective,
        num_workers: int,
        *,
        patience: float = math.inf,
    ) -> None:
        _validate.count(num_workers, "num_workers")
        if not patience > 0:
            raise ValueError(f"`patience` must be above 0 seconds: got {patience}.")
        self._patience = patience
        self._objective = pickled_objective(objective)
        self._slots = [Slot() for _ in range(num_workers)]
        self._in_use = Lock()
        self._in_order = True

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        alive = [slot.process for slot in self._slots if slot.process is not None]
        return [process.pid for process in alive if process.pid is not None]

    def evaluate(
        self,
        generation: Generation,
        tasks: Sequence[Task] | None = None,
        on_task: Callable[[int], None] = lambda done: None,
    ) -> list[Outcome]:
        """Do these tasks, or all of the generation.

        Raises:
            WorkerError: If workers die or hang again and again at the same task, or before they
                are ready. The centre is as it was, and so is everything that was learned. Also if
                another thread, or `on_task`, evaluates with this object at the same time.
            Exception: What the objective raised, with the worker's traceback as its cause.
        """
        wanted = tuple(generation.tasks if tasks is None else tasks)
        done: dict[int, Outcome] = {}
        if not self._in_use.acquire(blocking=False):
            raise WorkerError(
                "workers must evaluate one generation at a time: these are at work already. Wait "
                "until they are done, or make another LocalWorkers for each thread."
            )
        try:
            if not self._in_order:  # a second Ctrl-C came before the first one had ended them all
                self.close()
            self._in_order = False
            self._work(generation, deque(wanted), len(wanted), done, on_task)
            self._in_order = True
        except BaseException:
            self.close()  # whoever is still at work would answer in the next generation
            raise
        finally:
            self._in_use.release()
        return [done[task.number] for task in wanted]

    def _work(
        self,
        generation: Generation,
        waiting: deque[Task],
        total: int,
        done: dict[int, Outcome],
        on_task: Callable[[int], None],
    ) -> None:
        pickled = pickle.dumps(generation)
        deaths: dict[int, int] = {}
        for slot in self._slots[:total]:
            if slot.process is None:
                slot.start()
        while len(done) < total:
            for slot in self._slots:
                if waiting and slot.ready and slot.task is None:
                    try:
                        slot.send(generation, pickled, waiting.popleft())
                    except OSError:
                        self._bury(slot, generation, waiting, deaths)
            connections = [slot.connection for slot in self._slots if slot.connection]
            answering = wait(connections, self._longest_wait())
            for slot in self._slots:
                if slot.busy and slot.connection not in answering and _past(self._due(slot)):
                    self._bury(slot, generation, waiting, deaths)
            for slot in [slot for slot in self._slots if slot.connection in answering]:
                try:
                    kind, *rest = slot.receive()
                    if kind == "started":
                        slot.send_objective(self._objective)
                        continue
                except (EOFError, OSError):
                    self._bury(slot, generation, waiting, deaths)
                    continue
                slot.deaths = 0
                if kind == "ready":
                    slot.ready = True
                else:
                    outcome = opened((kind, *rest))
                    assert slot.task is not None
                    done[slot.task.number] = outcome
                    slot.task = None
                    on_task(len(done))

    def _longest_wait(self) -> float | None:
        """Seconds until the first answer is overdue."""
        due = min((self._due(slot) for slot in self._slots if slot.busy), default=math.inf)
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def _due(self, slot: Slot) -> float:
        """When it has to answer at the latest."""
        return slot.since + (self._patience if slot.ready else max(self._patience, START))

    def _bury(
        self, slot: Slot, generation: Generation, waiting: deque[Task], deaths: dict[int, int]
    ) -> None:
        """A worker has died or hangs: its task waits again, another one is started in its place.

        One that died idle is not counted: it was able to start, and no task is to blame.
        """
        task, was_ready = slot.task, slot.ready
        hangs, waited = slot.busy and _past(self._due(slot)), self._due(slot) - slot.since
        code = slot.stop()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if hangs:
            how = f"killed after {waited:g} seconds without an answer"
        if task is None and not was_ready:
            slot.deaths += 1
            if slot.deaths >= DEATHS:
                raise WorkerError(
                    f"a worker must live to be ready: {slot.deaths} in a row died before they were "
                    f"({how}); their own messages are above. A script that starts workers needs "
                    '`if __name__ == "__main__":` around its start. Nothing that was learned is '
                    "lost."
                )
        elif task is not None:
            waiting.appendleft(task)
            deaths[task.number] = deaths.get(task.number, 0) + 1
            if deaths[task.number] >= DEATHS:
                raise fatal(generation, task, deaths[task.number], how)
        slot.start()

    def close(self) -> None:
        """End all processes; the next evaluation starts new ones."""
        for slot in self._slots:  # all first, so that they end together
            if slot.connection is not None:
                slot.connection.close()
        for slot in self._slots:
            slot.stop()
            slot.deaths = 0
        self._in_order = True


def opened(message: tuple[Any, ...]) -> Outcome:
    """The outcome in a worker's answer; what was raised there is raised here."""
    kind, *rest = message
    if kind == "raised":
        error, text = rest
        raise error from RemoteError(text)
    outcome: Outcome = rest[0]
    return outcome


def fatal(generation: Generation, task: Task, deaths: int, how: str) -> WorkerError:
    """The error for a task that takes its workers with it."""
    return WorkerError(
        f"an evaluation must not end its process: {deaths} workers died ({how}) "
        f"{generation.name(task)}, seeds {task.seeds}. Nothing that was learned is lost: the "
        "centre is that of the generation's start. Look for a lack of memory or for a loop without "
        "an end, or evaluate that task in this process."
    )


def _past(moment: float) -> bool:
    return time.monotonic() > moment
