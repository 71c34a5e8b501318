"""A worker process and the state of its work."""

import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Lock
from typing import Any

from ._worker import main
from .generation import Generation, Task

LIBRARY_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables for the number of threads. Libraries read them when they are loaded, so a
worker must have them from its start. The worker sets numba's variable itself, because numba in this
process might read it while it is set here."""


class WorkerProcess:
    """One worker; after its process has died, `start` starts another one in its place."""

    def __init__(self) -> None:
        self.process: SpawnProcess | None = None
        self.connection: Connection | None = None
        self.ready = False
        self.task: Task | None = None
        self.generation: Generation | None = None
        self.deaths = 0
        self.waiting_since = 0.0

    def start(self) -> None:
        """Start a process, which asks for its objective when it runs."""
        context = get_context("spawn")  # a fork of a process with threads may hang
        connection, theirs = context.Pipe()
        process = context.Process(target=main, args=(theirs,), daemon=True)
        try:
            with _environment_of_a_worker():
                process.start()
        finally:
            theirs.close()  # otherwise the end of the worker would not close our side
        self.process, self.connection = process, connection
        self.ready, self.task, self.generation = False, None, None
        self.waiting_since = time.monotonic()

    def send_objective(self, pickled: bytes) -> None:
        """Answer the first message of the process."""
        assert self.connection is not None
        self.connection.send_bytes(pickled)

    def send(self, generation: Generation, pickled: bytes, task: Task) -> None:
        """Send a task, and the generation unless the process has it."""
        assert self.connection is not None
        self.task, self.waiting_since = task, time.monotonic()
        sent = None if self.generation is generation else pickled
        self.connection.send_bytes(pickle.dumps((sent, task)))
        self.generation = generation

    @property
    def busy(self) -> bool:
        """Whether an answer of the process is expected."""
        return self.connection is not None and not (self.ready and self.task is None)

    def receive(self) -> Any:
        """The next message of the process."""
        assert self.connection is not None
        return pickle.loads(self.connection.recv_bytes())

    def stop(self) -> int | None:
        """End the process if it still runs; its exit code."""
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


_starting = Lock()


@contextmanager
def _environment_of_a_worker() -> Iterator[None]:
    """Context with the environment for a process that is started in it, restored afterwards.

    The environment belongs to the whole process, so only one thread at a time may change it.
    """
    with _starting:
        before = {name: os.environ.get(name) for name in LIBRARY_THREADS}
        os.environ.update(dict.fromkeys(LIBRARY_THREADS, "1"))
        namespace = vars(sys.modules["__main__"])
        file = namespace.get("__file__")
        if file is not None and not os.path.exists(
            file
        ):  # such as "<stdin>", which a worker would try to open
            del namespace["__file__"]
        try:
            yield
        finally:
            if file is not None:
                namespace["__file__"] = file
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
