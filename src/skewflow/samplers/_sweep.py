"""The state of a sweep: the permutation drawn at its start and the number of rounds played."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import SamplingError
from . import _draw


class Sweep:
    """Plays rounds 0..length-1 under one permutation, then draws a new one."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._order: Int[Tensor, "n"] | None = None
        self._round = 0
        self._d = 0

    def next(
        self, d: int, *, length: int, order_size: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "n"], int]:
        """The permutation and the number of the round to play."""
        if self._order is not None and d != self._d:
            raise SamplingError(
                f"this sampler is in round {self._round} of a sweep over d={self._d} rows: got "
                f"d={d}. Use one sampler for each matrix."
            )
        if self._order is None:
            self._order, self._round, self._d = _draw.permutation(order_size, generator), 0, d
        order, now = self._order, self._round
        self._round += 1
        if self._round == length:
            self._order = None
        return order, now

    def state_dict(self) -> dict[str, Any]:
        """The kind of sweep, the permutation (None between sweeps), the next round and d."""
        return {"kind": self._kind, "order": self._order, "round": self._round, "d": self._d}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a saved sweep."""
        if not isinstance(state, dict) or set(state) != {"kind", "order", "round", "d"}:
            raise ValueError(
                "a sweep's state has the keys 'd', 'kind', 'order' and 'round': got "
                f"{sorted(state) if isinstance(state, dict) else state!r}. "
                "Load the state that this kind of sampler saved."
            )
        if state["kind"] != self._kind:
            raise ValueError(
                f"this sampler is a {self._kind}: got the state of a {state['kind']}. "
                "Make the sampler with the options it was saved with."
            )
        order = state["order"]
        if order is not None and sorted(order.tolist()) != list(range(len(order))):
            raise ValueError(f"a sweep's 'order' must be a permutation: got {order.tolist()}.")
        self._order, self._round, self._d = order, int(state["round"]), int(state["d"])
