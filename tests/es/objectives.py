"""Objectives that worker processes can import."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from skewflow.es import Moments, Objective, Outcome


def sphere(params):
    return sum((p**2).sum() for p in params.values())


def nan(params):
    return float("nan")


def leaves(params):
    sys.exit(3)


def cracked(params):
    raise LookupError("nothing here")


def endless(params):
    while True:
        time.sleep(1.0)


class UnpicklableError(Exception):
    def __init__(self, a, b):
        super().__init__(a)


def no_number(params):
    return torch.ones(2)


def threads(params):
    names = "OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS NUMBA_NUM_THREADS"
    return torch.get_num_threads() + 10 * sum(int(os.environ[name]) for name in names.split())


@dataclass
class Noisy(Objective):
    """A quadratic with noise, in units of what was observed before; its matrix product has digits
    that depend on the number of threads."""

    size: int = 40

    def evaluate(self, params, seed, moments):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((5, 3)) * [1.0, 10.0, 0.0]
        shift = 0.0 if moments is None else float((moments.scale() * moments.mean).sum())
        W = params["W"]
        target = torch.from_numpy(rng.standard_normal((self.size, self.size))).to(W)
        value = (W @ target).square().mean() + (params["b"] - shift).square().sum()
        return Outcome(float(value), 5, Moments.of(rows))


@dataclass
class Mortal(Noisy):
    """Kills its own process with signal 9: once at each point whose turn it is."""

    folder: Path = Path()
    every: int = 12

    def evaluate(self, params, seed, moments):
        outcome = super().evaluate(params, seed, moments)
        digits = int(abs(outcome.value) * 1e9)
        mark = self.folder / str(digits)
        if digits % self.every == 0 and not mark.exists():
            mark.touch()
            self.fail()
        return outcome

    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging(Mortal):
    """Never comes back from those points the first time."""

    def fail(self):
        endless({})


@dataclass
class Stuck(Objective):
    """Never comes back, with or without the interpreter's lock, and says who it is before."""

    folder: Path
    keeps_lock: bool

    def evaluate(self, params, seed, moments):
        (self.folder / str(os.getpid())).touch()
        if self.keeps_lock:
            ctypes.PyDLL(None).pause()
        endless(params)


class Bare(Objective):
    """Returns a number in place of an outcome."""

    def evaluate(self, params, seed, moments):
        return 1.0


class Secretive(Objective):
    """Has observed something that cannot be pickled."""

    def evaluate(self, params, seed, moments):
        return Outcome(1.0, 1, lambda: None)


class Fatal(Objective):
    """Kills every process that evaluates it from the second generation on."""

    def evaluate(self, params, seed, moments):
        if moments is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome(float(params["x"].sum()), 1, Moments.of(np.ones((1, 1))))


@dataclass
class Newborn(Objective):
    """Ends some of the processes that load it: those with these numbers, from 1 on."""

    folder: Path
    fatal: tuple[int, ...]

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.mark("born", os.getpid())
        if self.count("born") in self.fatal:
            os._exit(3)

    def mark(self, kind, name):
        (self.folder / f"{kind}-{name}").touch()

    def count(self, kind):
        return len(list(self.folder.glob(f"{kind}-*")))

    def evaluate(self, params, seed, moments):
        return Outcome(1.0)


class Meeting(Newborn):
    """Two evaluations that meet, so in two processes; then one waits until a fourth is born."""

    def evaluate(self, params, seed, moments):
        above = bool(params["x"][0] > 1)
        self.mark("at", above)
        while self.count("at") < 2 or (above and self.count("born") < 4):
            time.sleep(0.01)
        return Outcome(1.0)


class Unloadable:
    """A function that can be pickled, and not be unpickled in a worker."""

    def __call__(self, params):
        return 0.0

    def __reduce__(self):
        return _explode, ()


def _explode():
    raise ImportError("no module named simulator")


class DeadOnArrival(Unloadable):
    def __reduce__(self):
        return os._exit, (3,)
