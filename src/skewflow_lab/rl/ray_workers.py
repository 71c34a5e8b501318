"""Evaluation on a Ray cluster, or on a Ray of this machine's own (extra `ray`)."""

import faulthandler
import math
import os
import pickle
import re
import socket
from collections.abc import Generator, Sequence
from importlib.util import find_spec
from typing import Any

import torch

from skewflow.errors import WorkerError
from skewflow.es import Generation, Objective, Outcome, Task, Workers
from skewflow.es._messages import MAX_DEATHS, answer, outcome_of, picklable, repeated_death
from skewflow.es._process import LIBRARY_THREADS
from skewflow.es.pickling import pickled_objective

from ..runs.files import RunError

STORE = 256 * 2**20
"""Bytes for what travels, on a Ray that is started here; a generation is about one megabyte."""


def require_ray() -> None:
    """Raise a `RunError` that says what to install, if ray is missing."""
    if find_spec("ray") is None:
        raise RunError("--workers ray needs ray, of the extra `ray`: pip install 'skewflow[ray]'")


class RayWorkers(Workers):
    """Tasks of Ray, one for each task of a generation (Sec. 6.1: the paper used 800 machines).

    The outcomes are those of one process, to the bit, as with `LocalWorkers`: the centre goes out
    once a generation to each of Ray's processes, tasks go out as numbers, and a task whose process
    dies is done again. One that takes longer than `patience` ends its process itself.

    All machines of a cluster need this version of skewflow, and of the simulators.

    Args:
        objective: What is evaluated. What a script or notebook defines is sent by value, which
            needs cloudpickle here and there.
        address: Of a running cluster, as `ray start --head` prints it, or "auto" for the one on
            this machine. When omitted, a Ray with one process on each core is started, and ended by
            `close`.
        patience: Seconds that one task may take, with all its evaluations.

    Raises:
        RunError: If ray is not installed, or there is no cluster at the address.
        WorkerError: If the objective cannot be sent to another process.
    """

    def __init__(
        self, objective: Objective, *, address: str | None = None, patience: float = math.inf
    ) -> None:
        pickled = pickled_objective(objective, shares_main=False)
        require_ray()
        import ray

        self._ray: Any = ray
        self._mine = not ray.is_initialized()
        if self._mine:
            _start(address)
        self._patience = patience
        self._objective = ray.put(pickled)
        threads = (*LIBRARY_THREADS, "NUMBA_NUM_THREADS")
        self._evaluate = ray.remote(
            num_cpus=1,
            max_retries=MAX_DEATHS - 1,
            runtime_env={"env_vars": {**dict.fromkeys(threads, "1"), "MUJOCO_GL": "disabled"}},
        )(_evaluate)

    def _outcomes(
        self, generation: Generation, tasks: Sequence[Task]
    ) -> Generator[tuple[Task, Outcome], None, None]:
        ray = self._ray
        held = (self._objective, ray.put(pickle.dumps(generation)))
        sent = {self._evaluate.remote(held, task, self._patience): task for task in tasks}
        waiting = list(sent)
        try:
            while waiting:
                (ready,), waiting = ray.wait(waiting)
                yield sent[ready], self._receive(ready, generation, sent[ready])
        except BaseException:
            for ref in waiting:
                ray.cancel(ref, force=True)
            raise

    def _receive(self, ref: Any, generation: Generation, task: Task) -> Outcome:
        try:
            message = self._ray.get(ref)
        except self._ray.exceptions.WorkerCrashedError as error:
            how = "see Ray's messages above"
            raise repeated_death(generation, task, MAX_DEATHS, how) from error
        except self._ray.exceptions.RayError as error:
            raise WorkerError(
                f"Ray must be there as long as it is used: it failed {generation.name(task)} "
                f"({type(error).__name__}: {error}). Nothing that was learned is lost: go on with "
                "--resume, on any workers."
            ) from error
        return outcome_of(pickle.loads(message))

    def close(self) -> None:
        """Leave the cluster, or end the Ray that was started here."""
        if self._mine:
            self._ray.shutdown()


def _start(address: str | None) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here = {"include_dashboard": False, "object_store_memory": STORE}
    try:
        if address is not None and (place := re.fullmatch(r"\[?([^/]+?)\]?:(\d+)", address)):
            # Ray itself would try for minutes.
            socket.create_connection((place[1], int(place[2])), timeout=10).close()
        ray.init(address or "local", logging_level="warning", **({} if address else here))
    except Exception as error:  # of many kinds
        if address is None:
            raise
        raise RunError(
            f"--address must be that of a running Ray cluster: got {address!r} "
            f"({type(error).__name__}: {error}). Start one with `ray start --head`, or leave "
            "--address out."
        ) from error


_loaded: dict[int, tuple[str, Any]] = {}
"""In a process of Ray: the objective (0) and the generation (1) that it holds, by Ray's names."""


def _evaluate(held: Sequence[Any], task: Task, patience: float) -> bytes:
    """Runs in a process of Ray, which does one task after the other."""
    torch.set_num_threads(1)  # sums over threads end in other digits
    if math.isfinite(patience):
        # A thread of C, that also ends a process whose simulator does not come back.
        faulthandler.dump_traceback_later(patience, exit=True, file=2)
    try:
        objective, generation = (_load(place, ref) for place, ref in enumerate(held))
        return answer(objective, generation, task)
    except Exception as error:  # the objective cannot be made here: a package is missing, say
        return pickle.dumps(("raised", *picklable(error)))
    finally:
        faulthandler.cancel_dump_traceback_later()


def _load(place: int, ref: Any) -> Any:
    import ray

    name = ref.hex()
    if _loaded.get(place, ("", None))[0] != name:
        _loaded[place] = name, pickle.loads(ray.get(ref))
    return _loaded[place][1]
