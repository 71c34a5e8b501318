"""Executors made by hand, for weights whose device the machine does not have."""

from functools import cache

import torch

from skewflow.geometry.matrices import MatrixView
from skewflow.kernels._runtime.graphs import Graphs
from skewflow.kernels.update import Update
from skewflow.nn import orthogonal_
from skewflow.optim.auto import Choice
from skewflow.optim.clock import Clock
from skewflow.optim.drift import Drift
from skewflow.optim.executors.executor import Context, Member, Settings, Shared
from skewflow.optim.executors.low_rank import LowRankMemory
from skewflow.optim.gradient import layout_of
from skewflow.optim.sharded.rounds import Rounds
from skewflow.optim.weight import Weight


def members(shapes, generator, block_size, retraction="exp", device="cpu", dtype=None):
    """Weights of these shapes, as a plan lists them."""
    found, stream = [], 0
    for index, shape in enumerate(shapes):
        p = orthogonal_(torch.empty(shape), generator=generator).to(device, dtype)
        weight = Weight(p, f"weight {index}", MatrixView.of(p), stream)
        state = {"skipped": torch.zeros((), dtype=torch.int64, device=device)}
        choice = Choice(block_size, retraction, "")
        found.append(Member(index, weight, state, choice, layout_of(torch.zeros_like(p), weight)))
        stream += weight.num_matrices
    return found


def settings(update=None, *, skip=False):
    """What the executors of a group are made for."""
    shared = Shared(Clock(), Drift(), LowRankMemory(), cache(Graphs), Rounds())
    options = {"nonfinite": "skip" if skip else "raise", "foreach": None, "sampler": "sweep"}
    return Settings(options, update or Update(lr=0.1), shared)


def executor_of(kind, shapes, generator, *, skip=False, update=None, **choice):
    """An executor of some kind."""
    return kind(members(shapes, generator, **choice), settings(update, skip=skip))


def context(gradients, update, shared):
    """One step outside of CUDA graphs."""
    return Context({}, update, gradients, shared.clock, shared.drift, capturing=False)
