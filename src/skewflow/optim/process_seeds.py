"""Compares the seeds of data-parallel processes, which must draw the same blocks."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import count
from typing import Any
from warnings import warn

import torch

from .weight import Weight

LAST_TRY = 64
"""Steps after which processes that have not answered count as independent."""

_optimizers = count()


class SeedComparison:
    """Compares the seeds of one optimiser in all processes through torch's store, without waiting.

    Each process writes its seeds at the first step and reads those of the others at the steps 2, 4,
    8, ... until all have arrived. Optimisers correspond if they are made in the same order, for
    weights of the same shapes.
    """

    def __init__(self) -> None:
        self._number = next(_optimizers)
        self.steps, self.next_try = 0, 1
        """Steps of the optimiser, which counts them, and the step at which to compare next."""

    def compare(self, weights: Iterable[Weight], groups: Sequence[dict[str, Any]]) -> None:
        """Warn once if the seeds differ."""
        first, last = self.steps == 1, self.steps > LAST_TRY
        self.next_try *= 2
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            self.next_try = self.next_try if self.next_try <= LAST_TRY else 0
            return
        size, rank = distributed.get_world_size(), distributed.get_rank()
        if size == 1:
            return
        store = distributed.distributed_c10d._get_default_store()
        shapes = sha256(str([weight.view.shape for weight in weights]).encode()).hexdigest()
        keys = [f"skewflow/{self._number}/{shapes}/{r}" for r in range(size)]
        own = str([group["seed"] for group in groups])
        store.set(keys[rank], own)
        answered = not first and store.check(keys)
        if answered or last:
            self.next_try = 0
        if not answered:
            return
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
