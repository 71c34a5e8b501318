"""Who evaluates: this process, or local processes that may die at any time."""

import math
import os
import pickle
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from .. import _validate
from ..errors import WorkerError
from ._worker import RemoteError, main
from .generation import Generation, Task
from .objective import Objective, Outcome, PlainFunction, as_objective

DEATHS = 3
"""A task that has taken as many workers with it, or a worker that has died as often before it was
ready, is not tried again."""

START = 600.0
"""Seconds that a worker may take to be ready, if the patience with its tasks is not longer."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


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


class _Slot:
    """One worker process at a time, and what it is doing."""

    def __init__(self) -> None:
        self.process: SpawnProcess | None = None
        self.connection: Connection | None = None
        self.ready = False
        self.task: Task | None = None
        self.holds: Generation | None = None
        self.deaths = 0
        self.since = 0.0

    def start(self, pickled: bytes) -> None:
        context = get_context("spawn")  # a fork of a process with threads may hang
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=main, args=(theirs, pickled), daemon=True)
        with _one_thread_each():
            self.process.start()
        theirs.close()  # or the end of the worker would never show on our side
        self.ready, self.task, self.holds = False, None, None
        self.since = time.monotonic()

    def send(self, generation: Generation, pickled: bytes, task: Task) -> None:
        assert self.connection is not None
        self.task, self.since = task, time.monotonic()
        sent = None if self.holds is generation else pickled
        self.connection.send_bytes(pickle.dumps((sent, task)))
        self.holds = generation

    @property
    def busy(self) -> bool:
        """An answer is due."""
        return self.connection is not None and not (self.ready and self.task is None)

    def receive(self) -> Any:
        assert self.connection is not None
        return pickle.loads(self.connection.recv_bytes())

    def stop(self) -> int | None:
        """End the process if it is not over; its exit code."""
        if self.process is None:
            return None
        if self.connection is not None:
            self.connection.close()
        self.process.join(0.2)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code = self.process.exitcode
        self.process.close()
        self.process = self.connection = None
        return code


class LocalWorkers(Workers):
    """Processes on this machine that live as long as this object (not in the paper).

    A task's numbers go out, and its outcome comes back; the centre goes out once a generation to
    each process. The outcomes are those of one process, to the bit, whatever the number of
    processes and whichever of them die: the task of a dead one is done again, by a new one. One
    that does not answer for `patience` seconds is killed, and counts as dead. Each works on one
    thread.

    Processes are spawned: the objective must be picklable, that is, a function or class at the top
    of a module, and a script must guard its start by ``if __name__ == "__main__":``.

    Args:
        objective: A function of the parameters, or an `Objective`.
        num_workers: Processes.
        patience: Seconds that one task may take, with all its evaluations. No bound by default: how
            long a function takes is its caller's to say.

    Raises:
        WorkerError: If the objective cannot be pickled.

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
        self._slots = [_Slot() for _ in range(num_workers)]

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
                are ready. The centre is as it was, and so is everything that was learned.
            Exception: What the objective raised, with the worker's traceback as its cause.
        """
        wanted = tuple(generation.tasks if tasks is None else tasks)
        done: dict[int, Outcome] = {}
        try:
            self._work(generation, deque(wanted), len(wanted), done, on_task)
        except BaseException:
            self.close()  # whoever is still at work would answer in the next generation
            raise
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
                slot.start(self._objective)
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

    def _due(self, slot: _Slot) -> float:
        """When it has to answer at the latest."""
        return slot.since + (self._patience if slot.ready else max(self._patience, START))

    def _bury(
        self, slot: _Slot, generation: Generation, waiting: deque[Task], deaths: dict[int, int]
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
        slot.start(self._objective)

    def close(self) -> None:
        """End all processes; the next evaluation starts new ones."""
        for slot in self._slots:  # all first, so that they end together
            if slot.connection is not None:
                slot.connection.close()
        for slot in self._slots:
            slot.stop()
            slot.deaths = 0


def pickled_objective(objective: PlainFunction | Objective) -> bytes:
    """The objective as it travels to another process."""
    try:
        return pickle.dumps(as_objective(objective))
    except Exception as error:  # a pickler may raise anything
        raise WorkerError(
            f"an objective for worker processes must be picklable: {error}. Define it at the "
            "top of a module, or evaluate in this process with `workers=0`."
        ) from error


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


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """What is started meanwhile has libraries of one thread: they read this when they load."""
    before: dict[str, Any] = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
