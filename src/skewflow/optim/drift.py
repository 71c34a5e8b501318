r"""The drift guard: a cheap look at $X^\top X - I$ now and then, and a polish when it has grown.

A rotation of rows is exact up to rounding, so the error grows like a random walk: about
eps * sqrt(steps). The look costs two products with one vector. Where the parameter lives on a GPU
its answer is read only at the next look, from pinned memory, so that no step ever waits for it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels._runtime.graphs import is_capturing
from ..kernels.generator import forms_omega
from ..kernels.polish import polish_, residuals
from .weight import Weight

States = Mapping[Tensor, dict[str, Any]]
Store = Callable[[Weight, Tensor], None]
"""Brings changed points into their parameter, if they are a copy."""

TOLERANCE = {torch.float32: 4e-6, torch.float64: 4e-13}
r"""Largest $\|X^\top X - I\|_F / \sqrt k$ that is left alone."""

FACTORED_TOLERANCE = {dtype: tolerance / 4 for dtype, tolerance in TOLERANCE.items()}
"""Of weights that are stepped by factors."""

FACTORED_EVERY = 64
"""Most factored steps between two looks. Their errors do not cancel as those of rotated rows do:
see `rotate_factored`."""

SMALL = 1 << 20
"""Most elements of a parameter that is copied to be looked at together with others."""

POLISH_EVERY = 64
"""Float32 exponential steps by all of the generator, from one polish to the next. Equal steps are
rounded equally, so what they lose adds up: in the sum with the point by 1.2e-7 a step at most, and
256 may be taken before a look. A look would cost a small weight more than the polish, which costs
half a step. Other exact steps take off the error of their point."""


LARGEST_DRIFT = 0.01
r"""Largest $\|X^\top X - I\|_F / \sqrt k$ that rounding can explain, and a polish takes away."""


class Drift:
    """On a GPU the answer of a look is used at the next one, so that nobody waits for it.

    Args:
        looks: Steps done; every so many of them are looked at.
    """

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self._pending: dict[Tensor, tuple[Tensor, torch.cuda.Event]] = {}

    @torch.no_grad()
    def look_at(
        self,
        weights: Sequence[Weight],
        states: States,
        seed: int,
        store: Store,
        tolerance: Mapping[torch.dtype, float] = TOLERANCE,
    ) -> None:
        """What the look before asks for is done before this one."""
        Xs = [weight.view(weight.points(states[weight.p])) for weight in weights]
        streams = [weight.stream for weight in weights]
        if Xs[0].device.type == "cuda":
            drifts = [self._arrived(weight, states) for weight in weights]
            _polish(weights, Xs, drifts, states, store, tolerance)
            self._send(weights, residuals(Xs, seed, streams, self.looks), states)
        else:
            drifts = residuals(Xs, seed, streams, self.looks).tolist()
            _polish(weights, Xs, drifts, states, store, tolerance)

    def count(self, weight: Weight, states: States, group: dict[str, Any], store: Store) -> None:
        """One more factored step; now and then a look, by the steps of this weight."""
        state, every = states[weight.p], min(group["guard_every"], FACTORED_EVERY)
        state["factored"] = state.get("factored", 0) + 1
        if every and not state["factored"] % every:
            self.look_at([weight], states, group["seed"], store, FACTORED_TOLERANCE)

    def settle(self, weights: Mapping[Tensor, Weight], states: States) -> None:
        """Bring the answers that are under way into the states."""
        for p in list(self._pending):
            arrived = self._arrived(weights[p], states)
            if arrived is not None:
                states[p]["drift"] = arrived

    def _send(self, weights: Sequence[Weight], seen: Tensor, states: States) -> None:
        """Send the answer of a look on its way to the host."""
        pinned = torch.empty(len(weights), dtype=seen.dtype, pin_memory=True)
        pinned.copy_(seen, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(seen.device))
        for weight, drift in zip(weights, pinned, strict=True):
            self._pending[weight.p] = (drift, event)
            states[weight.p].pop("drift", None)

    def _arrived(self, weight: Weight, states: States) -> float | None:
        """The answer of the last look; it was asked for many steps ago, so this does not wait."""
        if weight.p in self._pending:
            drift, event = self._pending.pop(weight.p)
            event.synchronize()
            return float(drift)
        saved: float | None = states[weight.p].get("drift")
        return saved


def is_due(weight: Weight, state: dict[str, Any], retraction: str) -> bool:
    """Count an exact step; whether a polish follows it. No graph that is captured holds one."""
    _, d, k = weight.view.matrices
    turns = retraction == "exp" and forms_omega(d, k, retraction)
    if not turns or weight.p.dtype == torch.float64 or is_capturing():
        return False
    state["turns"] = state.get("turns", 0) + 1
    return bool(state["turns"] % POLISH_EVERY == 0)


def _polish(
    weights: Sequence[Weight],
    Xs: Sequence[Tensor],
    drifts: Sequence[float | None],
    states: States,
    store: Store,
    tolerance: Mapping[torch.dtype, float],
) -> None:
    """Bring back those that have drifted; raise for what no drift explains."""
    for weight, X, drift in zip(weights, Xs, drifts, strict=True):
        if drift is None or drift <= tolerance[X.dtype]:
            continue
        if drift <= LARGEST_DRIFT:
            polish_(X)
            store(weight, X)
        else:  # written by others, where nobody noticed it: a polish could diverge
            nearest = weight.nearest()
            if nearest is None:
                continue
            weight.p.copy_(nearest)
            if weight.is_half:
                weight.renew_master(states[weight.p])
        state = states[weight.p]
        state["polishes"] = state.get("polishes", 0) + 1
