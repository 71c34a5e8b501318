"""What runs in a worker process: tasks in, outcomes out, until the pipe is closed."""

import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Thread

import torch

from .generation import Generation, Task
from .objective import Objective
from .pickling import load_objective


class RemoteError(Exception):
    """The traceback of an error that was raised in another process, as its cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def main(connection: Connection) -> None:
    """Serve one parent; ends when the parent closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group: the parent ends
    end_with_parent()
    use_one_thread()
    with suppress(EOFError, OSError):  # the parent is gone
        _serve(connection)


def end_with_parent() -> None:
    """End this process as soon as its parent is gone, also in the middle of an evaluation.

    Processes that an evaluation itself has started are not ended.
    """
    parent = parent_process()
    assert parent is not None
    if sys.platform == "linux":
        from fcntl import F_GETFL, F_SETFL, F_SETOWN, F_SETSIG, fcntl

        # The kernel sends this signal when the parent's end of the pipe is closed, so it also ends
        # a worker whose evaluation keeps the interpreter's lock, as compiled code may. The death
        # signal of prctl would come already when the thread that has started the worker ends.
        with suppress(OSError):
            fcntl(parent.sentinel, F_SETSIG, signal.SIGKILL)
            fcntl(parent.sentinel, F_SETOWN, os.getpid())
            fcntl(parent.sentinel, F_SETFL, fcntl(parent.sentinel, F_GETFL) | os.O_ASYNC)
    Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    # A forked child of the parent holds its end of the pipe as well, hence the second condition.
    while parent.is_alive() and os.getppid() == parent.pid:
        parent.join(1.0)
    os._exit(1)


def use_one_thread() -> None:
    """Compute on one thread: sums over several threads end in other digits."""
    torch.set_num_threads(1)
    if "numba" in sys.modules:  # imported by the script, and its threads may run already
        sys.modules["numba"].set_num_threads(1)
    else:
        os.environ["NUMBA_NUM_THREADS"] = "1"


def _serve(connection: Connection) -> None:
    connection.send_bytes(pickle.dumps(("started",)))
    pickled = connection.recv_bytes()
    try:
        objective = load_objective(pickled)
    except Exception as error:
        connection.send_bytes(pickle.dumps(("raised", *portable(error))))
        return
    connection.send_bytes(pickle.dumps(("ready",)))
    generation: Generation | None = None
    while True:
        sent, task = pickle.loads(connection.recv_bytes())
        if sent is not None:
            generation = pickle.loads(sent)
        assert generation is not None
        connection.send_bytes(answer(objective, generation, task))


def answer(objective: Objective, generation: Generation, task: Task) -> bytes:
    """What goes back for a task, pickled: ("done", outcome), or ("raised", error, traceback)."""
    # Plain pickle: that of multiprocessing would put tensors into shared memory.
    try:
        return pickle.dumps(("done", generation.evaluate(objective, task)))
    except SystemExit as ended:
        rule = f"an evaluation must return a number: it called sys.exit({ended.code!r})."
        trace = "".join(traceback.format_exception(ended))
        return pickle.dumps(("raised", RuntimeError(rule), trace))
    except Exception as error:
        return pickle.dumps(("raised", *portable(error)))


def portable(error: Exception) -> tuple[Exception, str]:
    """The error, or one that can be pickled in its place, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return error, text
