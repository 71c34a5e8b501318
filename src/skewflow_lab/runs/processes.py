"""Independent cells of an experiment in several processes at once."""

import os
import signal
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any

from .experiment import Experiment
from .files import RunError
from .run import Run

Finished = tuple[str, dict[str, Any], dict[str, float]]
"""A cell, its result, and its clock times."""


def run_cells(
    experiment: Experiment[Any], config: Any, run: Run, cells: Sequence[str], processes: int
) -> Generator[Finished, None, None]:
    """Run cells in processes of their own, and yield each when it has ended.

    A cell starts when those that it needs are recorded. The numbers are those of a single process,
    to the bit. If a cell raises or this process stops, the others are killed; their states are in
    the run folder, and a resumed run goes on from there.

    Raises:
        RunError: If a process dies.
    """
    context = get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(processes, context, initializer=_follow_parent) as pool:
        waiting, running = list(cells), dict[Future[Finished], str]()
        try:
            while waiting or running:
                missing = {*waiting, *running.values()}
                ready = [c for c in waiting if missing.isdisjoint(experiment.needs(config, c))]
                for cell in ready[: processes - len(running)]:
                    waiting.remove(cell)
                    work = pool.submit(_run_cell, experiment, config, cell, run.worker())
                    running[work] = cell
                for work in wait_for(running, return_when=FIRST_COMPLETED).done:
                    yield work.result()
                    del running[work]
        except BrokenProcessPool as error:
            raise RunError(
                f"processes must live until their cells end: one of {processes} died, perhaps for "
                "lack of memory. Continue with --resume and fewer --processes."
            ) from error
        except BaseException:
            for child in active_children():
                child.kill()
            raise


def _run_cell(experiment: Experiment[Any], config: Any, cell: str, run: Run) -> Finished:
    result = experiment.run_cell(config, cell, run)
    return cell, result, run.clocks(cell)


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and end when it ends in any way, also by SIGKILL."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None  # this runs in a child

    def end() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=end, daemon=True).start()
