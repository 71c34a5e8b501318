r"""The drift guard: a cheap periodic check of $X^\top X - I$, and a polish when it has grown.

A rotation of rows is exact up to rounding, so the error grows like a random walk: about
eps * sqrt(steps). A check costs two products with one vector. On CUDA its result goes to pinned
memory and is read at the next check, so no step ever waits for it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..kernels._runtime.torch_threads import few_threads
from ..kernels.generator import forms_omega
from ..kernels.polish import polish_, residuals
from .weight import Weight

if TYPE_CHECKING:
    from .executors.executor import Member

TOLERANCE = {torch.float32: 4e-6, torch.float64: 4e-13}
r"""Largest $\|X^\top X - I\|_F / \sqrt k$ that is left without a polish."""

FACTORED_TOLERANCE = {dtype: tolerance / 4 for dtype, tolerance in TOLERANCE.items()}
"""The same bound for weights stepped by factors."""

FACTORED_EVERY = 64
"""Most factored steps between two checks. Errors of factored steps do not cancel as those of
rotated rows do: see `rotate_factored`."""

POLISH_EVERY = 64
"""Dense exponential steps in float32 between two polishes. Equal steps are rounded equally, so
their errors add up, by at most 1.2e-7 a step, and up to 256 steps pass without a check. For a small
weight a check costs more than the polish, which costs half a step. Other exact steps correct the
error of their point."""

LARGEST_DRIFT = 0.01
r"""Largest $\|X^\top X - I\|_F / \sqrt k$ that rounding explains and a polish corrects."""


class Drift:
    """Checks weights, and polishes those that have drifted.

    Args:
        checks: Number of steps so far at which weights were due for a check.
    """

    def __init__(self, checks: int = 0) -> None:
        self.checks = checks
        self._pending: dict[Tensor, tuple[dict[str, Any], Tensor, torch.cuda.Event]] = {}

    @torch.no_grad()
    def check(
        self,
        members: Sequence["Member"],
        seed: int,
        tolerance: Mapping[torch.dtype, float] = TOLERANCE,
    ) -> None:
        """Check weights of one shape; on CUDA first act on the result of the check before."""
        if members[0].weight.p.device.type != "cuda":
            self.check_now(members, seed, tolerance)
            return
        Xs = [member.weight.matrices(member.state)[0] for member in members]
        streams = [member.weight.stream for member in members]
        _polish(members, Xs, [self._arrived(member) for member in members], tolerance)
        self._send(members, residuals(Xs, seed, streams, self.checks))

    @torch.no_grad()
    def check_now(
        self,
        members: Sequence["Member"],
        seed: int,
        tolerance: Mapping[torch.dtype, float] = TOLERANCE,
    ) -> None:
        """Check weights of one shape, and wait for the result."""
        Xs = [member.weight.matrices(member.state)[0] for member in members]
        streams = [member.weight.stream for member in members]
        with few_threads(sum(X.numel() for X in Xs)):
            drifts = residuals(Xs, seed, streams, self.checks).tolist()
            _polish(members, Xs, drifts, tolerance)

    def settle(self) -> None:
        """Write pending results into the states."""
        for state, drift, event in self._pending.values():
            event.synchronize()
            state["drift"] = float(drift)
        self._pending.clear()

    def _send(self, members: Sequence["Member"], seen: Tensor) -> None:
        """Start the copy of a check's results to the host."""
        pinned = torch.empty(len(members), dtype=seen.dtype, pin_memory=True)
        pinned.copy_(seen, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(seen.device))
        for member, drift in zip(members, pinned, strict=True):
            self._pending[member.weight.p] = (member.state, drift, event)
            member.state.pop("drift", None)

    def _arrived(self, member: "Member") -> float | None:
        """The result of the last check; it was sent many steps ago, so this does not wait."""
        if member.weight.p in self._pending:
            _, drift, event = self._pending.pop(member.weight.p)
            event.synchronize()
            return float(drift)
        saved: float | None = member.state.get("drift")
        return saved


def accumulates_rounding(weight: Weight, retraction: str) -> bool:
    """Whether exact steps of a weight need a polish after every `POLISH_EVERY`."""
    _, d, k = weight.view.matrices
    turns = retraction == "exp" and forms_omega(d, k, retraction)
    return turns and weight.p.dtype != torch.float64


def polish_is_due(state: dict[str, Any]) -> bool:
    """Count an exact step of such a weight; returns whether a polish follows it."""
    state["turns"] = state.get("turns", 0) + 1
    return bool(state["turns"] % POLISH_EVERY == 0)


def _polish(
    members: Sequence["Member"],
    Xs: Sequence[Tensor],
    drifts: Sequence[float | None],
    tolerance: Mapping[torch.dtype, float],
) -> None:
    """Polish the weights that have drifted; raise for errors that no drift explains."""
    for member, X, drift in zip(members, Xs, drifts, strict=True):
        weight, state = member.weight, member.state
        if drift is None or drift <= tolerance[X.dtype]:
            continue
        if drift <= LARGEST_DRIFT:
            polish_(X)
            weight.write_back(state, X)
        else:  # other code wrote to it unnoticed: a polish could diverge
            nearest = weight.nearest()
            if nearest is None:
                continue
            weight.p.copy_(nearest)
            if weight.has_master:
                weight.renew_master(state)
        state["polishes"] = state.get("polishes", 0) + 1
