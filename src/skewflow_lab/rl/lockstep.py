"""Policies that act side by side, each with its own parameters: the loops are compiled."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from skewflow.es import Moments
from skewflow.es.objective import Params
from skewflow.kernels._runtime.numba_loops import kept

from .policies import CLIP

Rows = Float[np.ndarray, "n size"]


class Lockstep:
    """The policies of `policies.make_policy` for many episodes at once.

    An episode is computed by itself, so its numbers do not depend on which others go on.

    Args:
        members: Parameters of each policy, all recurrent or all affine.
        of_slot: The member that acts in each slot.
        moments: What all normalise their observations by.
        low: Least action, by entry.
        high: Largest action.
    """

    def __init__(
        self,
        members: Sequence[Params],
        of_slot: Int[np.ndarray, " slots"],
        moments: Moments | None,
        low: Float[np.ndarray, " a"],
        high: Float[np.ndarray, " a"],
    ) -> None:
        def stacked(name: str) -> Any:
            parts = [member[name].numpy() for member in members]
            return np.ascontiguousarray(np.stack([part.T for part in parts]), dtype=np.float32)

        if "W" in members[0]:
            self._transition = np.concatenate([stacked("W"), stacked("U")], axis=1)
            self._bias, self._readout = stacked("b"), stacked("C")
        else:
            self._readout = stacked("K")
            inputs = self._readout.shape[1]
            self._transition = np.empty((len(members), inputs, 0), dtype=np.float32)
            self._bias = np.empty((len(members), 0), dtype=np.float32)
        self._offset = stacked("c")
        hidden, slots = self._bias.shape[1], len(of_slot)
        size = self._transition.shape[1] - hidden
        self._of_slot = of_slot.astype(np.int64)
        self._mean = np.zeros(size) if moments is None else moments.mean
        self._scale = np.ones(size) if moments is None else moments.scale()
        self._low, self._high = low, high
        self._state = np.zeros((slots, hidden + size), dtype=np.float32)  # (h, o)
        self._first, self._sums, self._squares = np.zeros((3, slots, size))
        self._counts = np.zeros(slots, dtype=np.int64)

    def act(self, slots: Int[np.ndarray, " n"], observations: Rows) -> Rows:
        """The clipped actions of some slots at their next observations."""
        actions = np.empty((len(slots), len(self._low)))
        _act(
            slots, observations, self._of_slot, self._transition, self._bias, self._readout,
            self._offset, self._mean, self._scale, self._low, self._high, self._state,
            self._first, self._sums, self._squares, self._counts, actions,
        )  # fmt: skip
        return actions

    def observed(self, slot: int) -> Moments:
        """The moments of what was observed in a slot."""
        count, sums = int(self._counts[slot]), self._sums[slot]
        squares = np.maximum(self._squares[slot] - sums**2 / count, 0.0)
        return Moments(count, self._first[slot] + sums / count, squares)


def _loops(
    slots, observations, of_slot, transition, bias, readout, offset, mean, scale, low, high, state,
    first, sums, squares, counts, actions,
):  # fmt: skip
    hidden, size = bias.shape[1], observations.shape[1]
    h = np.empty(hidden, dtype=np.float32)
    a = np.empty(actions.shape[1], dtype=np.float32)
    for e in range(slots.size):
        slot = slots[e]
        m, s = of_slot[slot], state[slot]
        if counts[slot] == 0:  # deviations from the first observation keep the digits of small ones
            first[slot] = observations[e]
        counts[slot] += 1
        for j in range(size):
            value = observations[e, j]
            apart = value - first[slot, j]
            sums[slot, j] += apart
            squares[slot, j] += apart * apart
            s[hidden + j] = min(max((value - mean[j]) * scale[j], -CLIP), CLIP)
        h[:] = bias[m]
        for j in range(s.size):
            row, factor = transition[m, j], s[j]
            for k in range(hidden):
                h[k] += factor * row[k]
        for k in range(hidden):
            s[k] = np.tanh(h[k])
        a[:] = offset[m]
        for j in range(readout.shape[1]):
            for k in range(a.size):
                a[k] += s[j] * readout[m, j, k]
        for k in range(a.size):
            actions[e, k] = min(max(np.float64(a[k]), low[k]), high[k])


_act = kept(_loops, fastmath={"contract"})
