"""What runs in a worker process: tasks in, outcomes out, until the pipe is closed."""

import pickle
import signal
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from .generation import Generation, Task
from .objective import Objective


class RemoteError(Exception):
    """The traceback of an error that was raised in another process, as its cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def main(connection: Connection, pickled: bytes) -> None:
    """Serve one parent; ends when the parent closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group: the parent ends
    torch.set_num_threads(1)  # sums over threads end in other digits
    with suppress(EOFError, OSError):  # the parent is gone
        _serve(connection, pickled)


def _serve(connection: Connection, pickled: bytes) -> None:
    try:
        objective: Objective = pickle.loads(pickled)
    except Exception as error:
        _send(connection, "raised", *portable(error))
        return
    _send(connection, "ready")
    generation: Generation | None = None
    while True:
        sent, task = pickle.loads(connection.recv_bytes())
        if sent is not None:
            generation = pickle.loads(sent)
        assert generation is not None
        _send(connection, *answer(objective, generation, task))


def answer(objective: Objective, generation: Generation, task: Task) -> tuple[Any, ...]:
    """What goes back for a task: ("done", outcome), or ("raised", error, traceback)."""
    try:
        return "done", generation.evaluate(objective, task)
    except SystemExit as ended:
        rule = f"an evaluation must return a number: it called sys.exit({ended.code!r})."
        return "raised", RuntimeError(rule), "".join(traceback.format_exception(ended))
    except Exception as error:
        return "raised", *portable(error)


def _send(connection: Connection, *message: Any) -> None:
    # Plain pickle: that of multiprocessing would put tensors into shared memory.
    connection.send_bytes(pickle.dumps(message))


def portable(error: Exception) -> tuple[Exception, str]:
    """The error, or one that can be pickled in its place, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return error, text
