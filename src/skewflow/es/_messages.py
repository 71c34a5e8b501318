"""Answers of worker processes, and the errors about them, for all kinds of workers."""

import pickle
import traceback
from typing import Any

from ..errors import WorkerError
from .generation import Generation, Task
from .objective import Objective, Outcome

MAX_DEATHS = 3
"""Deaths at one task, or in a row before a worker is ready, after which an evaluation fails. One
death may be an accident, such as a lack of memory."""


class RemoteError(Exception):
    """The traceback of an error in another process, as the cause of the error raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def answer(objective: Objective, generation: Generation, task: Task) -> bytes:
    """Evaluate a task in a worker; ("done", outcome) or ("raised", error, traceback) as bytes."""
    # Plain pickle: that of multiprocessing would put tensors into shared memory.
    try:
        return pickle.dumps(("done", generation.evaluate(objective, task)))
    except SystemExit as ended:
        rule = f"an evaluation must return a number: it called sys.exit({ended.code!r})."
        trace = "".join(traceback.format_exception(ended))
        return pickle.dumps(("raised", RuntimeError(rule), trace))
    except Exception as error:
        return pickle.dumps(("raised", *picklable(error)))


def picklable(error: Exception) -> tuple[Exception, str]:
    """The error, or a RuntimeError if it cannot be pickled, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return error, text


def outcome_of(message: tuple[Any, ...]) -> Outcome:
    """The outcome in a worker's answer; an error of the worker is raised here."""
    kind, *rest = message
    if kind == "raised":
        error, text = rest
        raise error from RemoteError(text)
    outcome: Outcome = rest[0]
    return outcome


def repeated_death(generation: Generation, task: Task, deaths: int, how: str) -> WorkerError:
    """The error for a task at which `deaths` workers have died."""
    return WorkerError(
        f"an evaluation must not end its process: {deaths} workers died ({how}) "
        f"{generation.name(task)}, seeds {task.seeds}. No earlier generation is lost. Check for a "
        "lack of memory or an endless loop, or evaluate that task in this process."
    )
