"""Calls of compiled CPU loops: arguments, threads, the cache, and a message on slow compilation.

Importing this module imports numba, so that only modules with compiled loops do.
"""

import os
import sys
from collections.abc import Callable
from threading import Lock, Timer
from time import monotonic
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from numba import njit
from numba.core import event
from torch import Tensor

from .torch_threads import GRAIN, Process

PATIENCE = 2.0
"""Seconds of compilation after which a message appears on stderr."""

PRANGE_ONLY = {
    "prange": True,
    "comprehension": False,
    "reduction": False,
    "inplace_binop": False,
    "setitem": False,
    "numpy": False,
    "stencil": False,
    "fusion": False,
}
"""Only loops marked `prange` run in parallel: a search for others makes compilation slow."""

fast = njit(fastmath={"contract", "reassoc", "nsz", "arcp"}, forceinline=True)
"""Compiles an inner loop whose sums may vectorise; NaN and infinity keep their meaning.  The loop
is inlined. Compiled separately, it rounds differently in the process that compiles it and in one
that reads numba's cache."""


def kept(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function on its first call, and keep it on disk for later processes.

    Where no folder is writable, as in a read-only container, every process compiles it.
    """
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder
        return njit(**options)(function)


_MOST_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]


class Loops:
    """A function with `prange` loops, compiled for one thread and for several, each when needed.

    Both give the same bits, because the iterations of a loop are independent.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        assert isinstance(function, FunctionType)
        self._serial = kept(function)
        # numba's cache identifies functions by name and ignores their options.
        twin = FunctionType(function.__code__, function.__globals__, f"{function.__name__}_threads")
        twin.__qualname__ = twin.__name__
        self._parallel = kept(twin, parallel=PRANGE_ONLY)

    def __call__(self, work: int, *args: Any) -> Any:
        """Run on one thread per `GRAIN` entries of `work`, and on at most as many as torch uses.

        A forked process has one: it would wait for the threads of its parent, torch's among them.
        """
        threads = min(work // GRAIN, torch.get_num_threads(), _MOST_THREADS)
        if threads < 2 or Process.forked or not _pool.lock.acquire(blocking=False):
            return self._serial(*args)
        try:
            before = _pool.threads()
            numba.set_num_threads(threads)
            try:
                return self._parallel(*args)
            finally:
                numba.set_num_threads(before)
        finally:
            _pool.lock.release()


def addresses(*tensors: Tensor | None) -> tuple[int, ...]:
    """The addresses of the first entries; 0 for None."""
    return tuple(0 if A is None else A.data_ptr() for A in tensors)


def strides(*tensors: Tensor | None) -> tuple[tuple[int, ...], ...]:
    """The strides in entries; zeros for None."""
    return tuple((0, 0, 0) if A is None else A.stride() for A in tensors)


def mark_written(*tensors: Tensor | None) -> None:
    """Mark these as changed for autograd, which does not see the writes of numba."""
    for A in tensors:
        if A is not None and not A.is_inference():
            torch.autograd.graph.increment_version(A)


def as_array(moments: Tensor | None) -> Any:
    """Second moments of the rows as an array; None gives an empty one."""
    return np.empty((0, 0)) if moments is None else moments.to(torch.float64).numpy()


class _Pool:
    """numba's threads, used by one caller at a time: some of numba's layers abort otherwise."""

    def __init__(self) -> None:
        self.lock, self.started = Lock(), False

    def threads(self) -> int:
        """The number of threads that numba uses for the caller's functions; this starts them."""
        if not self.started:
            # With one OpenMP for both, numba's start changes torch's number of threads.
            before = torch.get_num_threads()
            numba.get_num_threads()
            torch.set_num_threads(before)
            self.started = True
        return int(numba.get_num_threads())

    def after_fork(self) -> None:
        """Forget the lock of the parent, which may have held it."""
        self.lock = Lock()


_pool = _Pool()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_pool.after_fork)


class _Announcer(event.Listener):
    """Says once on stderr that kernels are compiled, if that takes more than `PATIENCE` in all."""

    def __init__(self) -> None:
        self._depth, self._left, self._began, self._timer = 0, PATIENCE, 0.0, Timer(0, print)

    def on_start(self, event: event.Event) -> None:
        """Start the clock at the outermost function."""
        self._depth += 1
        if self._depth == 1 and self._left > 0 and _is_ours(event):
            where = "kept for later processes"
            if not event.data["dispatcher"].stats.cache_path:
                where = "by every process: set NUMBA_CACHE_DIR to a folder that can be written"
            self._began = monotonic()
            self._timer = Timer(self._left, print, [f"skewflow: compiling CPU kernels ({where})"])
            self._timer.kwargs = {"file": sys.stderr, "flush": True}
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event: event.Event) -> None:
        """Stop it."""
        self._depth -= 1
        if self._depth == 0 and self._timer.is_alive():
            self._timer.cancel()
            self._left -= monotonic() - self._began
        elif self._depth == 0 and self._began:
            self._left = 0.0


def _is_ours(event: event.Event) -> bool:
    module: str = event.data["dispatcher"].py_func.__module__
    return module.startswith(__name__.partition(".")[0])  # the laboratory has loops, too


_announcer = _Announcer()
event.register("numba:compile", _announcer)  # type: ignore[no-untyped-call]
