"""Compares the seeds of data-parallel processes, which must draw the same blocks."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import count
from typing import Any
from warnings import warn

import torch

from .weight import Weight

LAST_TRY = 64
"""Step after which nothing is compared any more: then the processes share no weights."""

_optimizers = count()


class Ranks:
    """The seeds of one optimiser in all processes, by way of torch's store: nobody waits.

    Each process writes its own at the first step and reads the others' at the steps 2, 4, 8, ...
    until all are there. Optimisers are the same if they are made in the same order, for weights of
    the same shapes.
    """

    def __init__(self) -> None:
        self._number, self._steps, self._done = next(_optimizers), 0, False

    def compare(self, weights: Iterable[Weight], groups: Sequence[dict[str, Any]]) -> None:
        """Count a step, and warn once if the seeds differ."""
        if self._done:
            return
        self._steps += 1
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            self._done = self._steps > LAST_TRY
            return
        size, rank = distributed.get_world_size(), distributed.get_rank()
        power_of_two = self._steps & (self._steps - 1) == 0
        if size == 1 or not power_of_two:
            return
        store = distributed.distributed_c10d._get_default_store()
        shapes = sha256(str([weight.view.shape for weight in weights]).encode()).hexdigest()
        keys = [f"skewflow/{self._number}/{shapes}/{r}" for r in range(size)]
        own = str([group["seed"] for group in groups])
        store.set(keys[rank], own)
        if self._steps == 1 or not store.check(keys):
            self._done = self._steps > LAST_TRY
            return
        self._done = True
        for r, key in enumerate(keys):
            theirs = store.get(key).decode()
            if theirs != own:
                warn(
                    "processes that share their weights must draw the same blocks, or the weights "
                    f"drift apart: rank {rank} has the seeds {own}, rank {r} has {theirs}. Give "
                    "the optimiser the same `seed` in every process.",
                    stacklevel=2,
                )
                return
