"""Detects writes to the weights by something other than their optimiser."""

import ctypes
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .weight import Weight

_CELLS: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


class ForeignWrites:
    """The weights as the optimiser left them: addresses, versions, and two entries of each.

    The version of a tensor counts the writes to it, except those through `.data`. So on a CPU,
    where the host can read them at once, the first and the last entry are compared, too.
    """

    def __init__(self) -> None:
        self._weights: list[Weight] = []
        self._params: list[Tensor] = []
        self._places: list[int] = []
        self._counted: list[Weight] = []
        self._versions: list[int] = []
        self._celled: list[Weight] = []
        self._cells: list[Any] = []
        self._entries: list[float] = []
        self.copies: list[Weight] = []
        """Weights on a CPU whose masters are compared instead."""
        self.suspects: set[Weight] = set()
        """Weights that other code has written to and that have not been checked since."""

    def add(self, weights: Iterable[Weight]) -> None:
        """Watch more weights from now on."""
        self._weights += weights
        self._params = [weight.p for weight in self._weights]
        self._follow()

    def note(self) -> None:
        """Record the weights as they are, because the optimiser has just written to them."""
        self._versions = [weight.p._version for weight in self._counted]
        self._entries = [cell.value for cell in self._cells]

    @torch.no_grad()
    def admit(self, moving: Collection[Weight], states: Mapping[Tensor, dict[str, Any]]) -> None:
        """Check the suspects among the weights of a step, and those with masters against them.

        Weights near the manifold are projected. All are checked before one is changed.

        Args:
            moving: The weights that the step will move.
            states: The states of all weights.

        Raises:
            NotOnManifoldError: If a weight is too far away to be meant.
        """
        written = [
            weight
            for weight in self._weights
            if weight in moving
            and (weight in self.suspects or weight in self.copies)
            and (not weight.has_master or weight.is_behind(states[weight.p]))
        ]
        nearest = [(weight, weight.nearest()) for weight in written]
        for weight, point in nearest:
            if point is not None:
                weight.p.copy_(point)
            if weight.has_master:
                weight.renew_master(states[weight.p])
        self.suspects.difference_update(moving)

    def compare(self) -> set[Weight]:
        """Compare the weights with the record, and return all suspects."""
        places = [p.data_ptr() for p in self._params]
        if places != self._places:
            self._suspect(self._weights, places, self._places)
            self._follow()  # before an entry is read from memory that may have been freed
        versions = [weight.p._version for weight in self._counted]
        if versions != self._versions:
            self._suspect(self._counted, versions, self._versions)
        entries = [cell.value for cell in self._cells]
        if entries != self._entries:
            self._suspect(self._celled, entries, self._entries)
        return self.suspects

    def _suspect(self, weights: list[Weight], now: list[Any], then: list[Any]) -> None:
        both = zip(weights, now, then, strict=True)
        self.suspects.update(weight for weight, new, old in both if new != old)

    def _follow(self) -> None:
        """Record the addresses of the weights and their entries."""
        self._places = [p.data_ptr() for p in self._params]
        self._counted = [w for w in self._weights if not w.p.is_inference()]
        on_cpu = [w for w in self._weights if w.p.device.type == "cpu"]
        self.copies = [w for w in on_cpu if w.has_master]
        self._celled, self._cells = [], []
        for weight in on_cpu:
            p, kind = weight.p, _CELLS.get(weight.p.dtype)
            if kind is None or not p.data_ptr():
                continue
            steps = sum((n - 1) * stride for n, stride in zip(p.shape, p.stride(), strict=True))
            for offset in (0, steps * p.element_size()):
                self._celled.append(weight)
                self._cells.append(kind.from_address(p.data_ptr() + offset))
        self.note()
