"""One worker process at a time, and what it is doing."""

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
"""Libraries read these when a process loads them, so a worker must have them from the start.

numba's variable is set by the worker: while it is set here, numba may read it here as well.
"""


class Slot:
    """A place for one process; a dead one is replaced."""

    def __init__(self) -> None:
        self.process: SpawnProcess | None = None
        self.connection: Connection | None = None
        self.ready = False
        self.task: Task | None = None
        self.holds: Generation | None = None
        self.deaths = 0
        self.since = 0.0

    def start(self) -> None:
        """Start a process; it asks for its objective when it runs."""
        context = get_context("spawn")  # a fork of a process with threads may hang
        connection, theirs = context.Pipe()
        process = context.Process(target=main, args=(theirs,), daemon=True)
        try:
            with _environment_of_a_worker():
                process.start()
        finally:
            theirs.close()  # or the end of the worker would never show on our side
        self.process, self.connection = process, connection
        self.ready, self.task, self.holds = False, None, None
        self.since = time.monotonic()

    def send_objective(self, pickled: bytes) -> None:
        """Answer its first message."""
        assert self.connection is not None
        self.connection.send_bytes(pickled)

    def send(self, generation: Generation, pickled: bytes, task: Task) -> None:
        """Give it a task, and the generation if it has another one."""
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
        """Its next message."""
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


_starting = Lock()


@contextmanager
def _environment_of_a_worker() -> Iterator[None]:
    """What a process inherits that is started meanwhile; afterwards all is as it was.

    The environment belongs to the whole process, so that only one thread at a time may do this.
    """
    with _starting:
        before = {name: os.environ.get(name) for name in LIBRARY_THREADS}
        os.environ.update(dict.fromkeys(LIBRARY_THREADS, "1"))
        namespace = vars(sys.modules["__main__"])
        file = namespace.get("__file__")
        if file is not None and not os.path.exists(file):  # "<stdin>", which a worker would open
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
