"""Pickles of objectives for other processes: by name, or by value where a name is not enough."""

import io
import os
import pickle
import sys
from types import FunctionType
from typing import Any

from ..errors import WorkerError
from .objective import Objective, PlainFunction, as_objective


def pickled_objective(objective: PlainFunction | Objective, *, shares_main: bool = True) -> bytes:
    """The objective as bytes, for `load_objective` in another process.

    Functions and classes of a module are pickled by name, as usual. A lambda, a nested function
    and everything that a notebook defines have no name that another process can import;
    cloudpickle, if installed, pickles them by value together with the globals that they use.

    Args:
        objective: A function of the parameters, or an `Objective`.
        shares_main: Whether the other process imports the running script, if that is a file.

    Raises:
        WorkerError: If the objective can be pickled in neither way.
    """
    whole = as_objective(objective)
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    try:
        pickler.dump(whole)
    except Exception as error:  # a pickler may raise anything
        problem = f"{type(error).__name__}: {error}"
    else:
        if not pickler.of_main or (shares_main and _main_is_importable()):
            return buffer.getvalue()
        problem = f"they cannot import {', '.join(sorted(pickler.of_main))} from this `__main__`"
    try:
        import cloudpickle
    except ImportError:
        way_out = "Define it at the top of a module that is imported here, or install cloudpickle"
    else:
        try:
            return bytes(cloudpickle.dumps(whole))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            way_out = "Create what cannot be pickled at the first evaluation"
    raise WorkerError(
        f"worker processes must be able to load the objective: {problem}. {way_out}, or evaluate "
        "in this process with `workers=0`."
    )


def load_objective(pickled: bytes) -> Objective:
    """The objective from the bytes of `pickled_objective`."""
    objective: Objective = _Unpickler(io.BytesIO(pickled)).load()
    return objective


class _Pickler(pickle.Pickler):
    """Records the functions and classes of `__main__` that the pickle refers to by name."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.of_main: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            self.of_main.add(obj.__qualname__)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Explains why a name of `__main__` is missing in another process."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except AttributeError as error:
            raise WorkerError(
                f"workers must find `{name}` where this process has it: {error}. Define it at the "
                'top of the script, outside of `if __name__ == "__main__":`, or in a module.'
            ) from error


def _main_is_importable() -> bool:
    """Whether spawned processes import this `__main__`, by the rule of `multiprocessing.spawn`."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # python -m
        return main.__spec__.name.rpartition(".")[2] != "__main__"
    return os.path.isfile(getattr(main, "__file__", ""))
