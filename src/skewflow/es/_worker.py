"""The program of a worker process: it receives tasks and sends outcomes until the pipe closes."""

import os
import pickle
import signal
import sys
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Thread

import torch

from ._messages import answer, picklable
from .generation import Generation
from .pickling import load_objective


def main(connection: Connection) -> None:
    """Serve one parent, until it closes the pipe or ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole process group; the parent handles it
    end_with_parent()
    use_one_thread()
    with suppress(EOFError, OSError):  # the parent has ended
        _serve(connection)


def end_with_parent() -> None:
    """End this process as soon as its parent ends, also during an evaluation.

    Processes that an evaluation has started are not ended.
    """
    parent = parent_process()
    assert parent is not None
    if sys.platform == "linux":
        from fcntl import F_GETFL, F_SETFL, F_SETOWN, F_SETSIG, fcntl

        # The kernel sends this signal when the parent's end of the pipe is closed, so it also ends
        # a worker whose evaluation holds the interpreter's lock, as compiled code may do. The death
        # signal of prctl would already come when the thread that started the worker ends.
        with suppress(OSError):
            fcntl(parent.sentinel, F_SETSIG, signal.SIGKILL)
            fcntl(parent.sentinel, F_SETOWN, os.getpid())
            fcntl(parent.sentinel, F_SETFL, fcntl(parent.sentinel, F_GETFL) | os.O_ASYNC)
    Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    # A forked child of the parent holds its end of the pipe too, hence the second condition.
    while parent.is_alive() and os.getppid() == parent.pid:
        parent.join(1.0)
    os._exit(1)


def use_one_thread() -> None:
    """Compute on one thread, because sums over several threads round differently."""
    torch.set_num_threads(1)
    if "numba" in sys.modules:  # the script has imported it, and its threads may run already
        sys.modules["numba"].set_num_threads(1)
    else:
        os.environ["NUMBA_NUM_THREADS"] = "1"


def _serve(connection: Connection) -> None:
    connection.send_bytes(pickle.dumps(("started",)))
    pickled = connection.recv_bytes()
    try:
        objective = load_objective(pickled)
    except Exception as error:
        connection.send_bytes(pickle.dumps(("raised", *picklable(error))))
        return
    connection.send_bytes(pickle.dumps(("ready",)))
    generation: Generation | None = None
    while True:
        sent, task = pickle.loads(connection.recv_bytes())
        if sent is not None:
            generation = pickle.loads(sent)
        assert generation is not None
        connection.send_bytes(answer(objective, generation, task))
