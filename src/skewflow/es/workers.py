"""Evaluation of tasks in this process, or in local worker processes that may die at any time."""

import math
import pickle
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from multiprocessing.connection import wait
from threading import Lock

import torch

from .. import _validate
from ..errors import WorkerError
from ._messages import MAX_DEATHS, outcome_of, repeated_death
from ._process import WorkerProcess
from .generation import Generation, Task
from .objective import Objective, Outcome, PlainFunction, as_objective
from .pickling import pickled_objective

START_PATIENCE = 600.0
"""Seconds that a worker may take to start, unless `patience` is longer: imports on a busy machine
with a slow disk take minutes."""


class Workers(ABC):
    """Evaluates the tasks of a generation (not in the paper).

    Subclasses say how. A `Workers` is a context manager that calls `close` at its end.
    """

    def evaluate(
        self,
        generation: Generation,
        tasks: Sequence[Task] | None = None,
        on_task: Callable[[int], None] = lambda done: None,
    ) -> list[Outcome]:
        """The outcomes of tasks, in the order of the tasks.

        Args:
            generation: The generation of the tasks.
            tasks: Some of its tasks; all of them when omitted.
            on_task: Called after each task with the number of tasks done so far.

        Raises:
            WorkerError: If workers die or hang repeatedly at the same task, or before they are
                ready; no earlier generation is lost. Also if another thread, or `on_task`,
                evaluates with the same workers at the same time.
            Exception: An error of the objective; its cause is the worker's traceback.
        """
        wanted = tuple(generation.tasks if tasks is None else tasks)
        outcomes: dict[int, Outcome] = {}
        with closing(self._outcomes(generation, wanted)) as arriving:
            for task, outcome in arriving:
                outcomes[task.number] = outcome
                on_task(len(outcomes))
        return [outcomes[task.number] for task in wanted]

    @abstractmethod
    def _outcomes(
        self, generation: Generation, tasks: Sequence[Task]
    ) -> Generator[tuple[Task, Outcome], None, None]:
        """Evaluate tasks and yield each with its outcome, in any order.

        If an error occurs here or in the caller, the generator ends the tasks that still run.
        """

    @abstractmethod
    def close(self) -> None:
        """End the processes that were started; nothing is lost."""

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

    def _outcomes(
        self, generation: Generation, tasks: Sequence[Task]
    ) -> Generator[tuple[Task, Outcome], None, None]:
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # as in worker processes, for the same bits
        try:
            for task in tasks:
                yield task, generation.evaluate(self.objective, task)
        finally:
            torch.set_num_threads(before)

    def close(self) -> None:
        """Do nothing, because nothing was started."""


class LocalWorkers(Workers):
    """Processes on this machine that live as long as this object (not in the paper).

    A process receives the centre once per generation, and for each task only a few numbers. The
    outcomes are those of a single process, to the bit, whatever the number of processes and
    whichever of them die: the task of a dead process is repeated by a new one. A process that does
    not answer for `patience` seconds is killed and counts as dead. Each process has one thread.

    Processes are spawned, so a script must guard its start by ``if __name__ == "__main__":``. The
    objective should be a function or class at the top of a module. A lambda, or a function of a
    notebook, is pickled by value, which needs cloudpickle.

    If this process ends in any way, even by SIGKILL, the workers end at once, also during an
    evaluation. Processes that an evaluation has started are not ended.

    Args:
        objective: A function of the parameters, or an `Objective`.
        num_workers: Number of processes.
        patience: Seconds that one task may take, with all its evaluations. There is no limit by
            default, because only the caller knows how long an evaluation takes.

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
            raise ValueError(f"`patience` must be above 0 seconds: got {patience}. Try 600.")
        self._patience = patience
        self._objective = pickled_objective(objective)
        self._workers = [WorkerProcess() for _ in range(num_workers)]
        self._in_use = Lock()
        self._interrupted = False

    @property
    def pids(self) -> list[int]:
        """The identifiers of the processes that run now."""
        alive = [worker.process for worker in self._workers if worker.process is not None]
        return [process.pid for process in alive if process.pid is not None]

    def _outcomes(
        self, generation: Generation, tasks: Sequence[Task]
    ) -> Generator[tuple[Task, Outcome], None, None]:
        if not self._in_use.acquire(blocking=False):
            raise WorkerError(
                "workers must evaluate one generation at a time: these are at work already. Wait "
                "until they are done, or make another LocalWorkers for each thread."
            )
        try:
            if self._interrupted:  # a second Ctrl-C came before the first had ended all processes
                self.close()
            self._interrupted = True
            yield from self._work(generation, deque(tasks))
            self._interrupted = False
        except BaseException:
            self.close()  # a process that still works would answer in the next generation
            raise
        finally:
            self._in_use.release()

    def _work(
        self, generation: Generation, waiting: deque[Task]
    ) -> Generator[tuple[Task, Outcome], None, None]:
        pickled = pickle.dumps(generation)
        deaths: dict[int, int] = {}
        missing = len(waiting)
        for worker in self._workers[:missing]:
            if worker.process is None:
                worker.start()
        while missing:
            for worker in self._workers:
                if waiting and worker.ready and worker.task is None:
                    try:
                        worker.send(generation, pickled, waiting.popleft())
                    except OSError:
                        self._replace(worker, generation, waiting, deaths)
            connections = [worker.connection for worker in self._workers if worker.connection]
            answering = wait(connections, self._seconds_to_deadline())
            for worker in self._workers:
                late = worker.busy and _past(self._deadline(worker))
                if late and worker.connection not in answering:
                    self._replace(worker, generation, waiting, deaths)
            for worker in [w for w in self._workers if w.connection in answering]:
                try:
                    kind, *rest = worker.receive()
                    if kind == "started":
                        worker.send_objective(self._objective)
                        continue
                except (EOFError, OSError):
                    self._replace(worker, generation, waiting, deaths)
                    continue
                worker.deaths = 0
                if kind == "ready":
                    worker.ready = True
                else:
                    outcome = outcome_of((kind, *rest))
                    task, worker.task = worker.task, None
                    assert task is not None
                    missing -= 1
                    yield task, outcome

    def _seconds_to_deadline(self) -> float | None:
        """Seconds until the first expected answer is late; None if no answer can be late."""
        busy = (self._deadline(worker) for worker in self._workers if worker.busy)
        first = min(busy, default=math.inf)
        return None if first == math.inf else max(0.0, first - time.monotonic())

    def _deadline(self, worker: WorkerProcess) -> float:
        """The time by which a worker must answer."""
        patience = self._patience if worker.ready else max(self._patience, START_PATIENCE)
        return worker.waiting_since + patience

    def _replace(
        self,
        worker: WorkerProcess,
        generation: Generation,
        waiting: deque[Task],
        deaths: dict[int, int],
    ) -> None:
        """Put the task of a worker that died or hangs back, and start another process.

        The death of an idle worker is not counted: it was able to start, and no task is the cause.
        """
        task, was_ready = worker.task, worker.ready
        deadline = self._deadline(worker)
        hangs, waited = worker.busy and _past(deadline), deadline - worker.waiting_since
        code = worker.stop()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if hangs:
            how = f"killed after {waited:g} seconds without an answer"
        if task is None and not was_ready:
            worker.deaths += 1
            if worker.deaths >= MAX_DEATHS:
                raise WorkerError(
                    f"a worker must live to be ready: {worker.deaths} in a row died before they "
                    f"were ({how}); their own messages are above. A script that starts workers "
                    'needs `if __name__ == "__main__":` around its start. No generation is lost.'
                )
        elif task is not None:
            waiting.appendleft(task)
            deaths[task.number] = deaths.get(task.number, 0) + 1
            if deaths[task.number] >= MAX_DEATHS:
                raise repeated_death(generation, task, deaths[task.number], how)
        worker.start()

    def close(self) -> None:
        """End all processes; the next evaluation starts new ones."""
        for worker in self._workers:  # close all connections first, so that they end together
            if worker.connection is not None:
                worker.connection.close()
        for worker in self._workers:
            worker.stop()
            worker.deaths = 0
        self._interrupted = False


def _past(moment: float) -> bool:
    return time.monotonic() > moment
