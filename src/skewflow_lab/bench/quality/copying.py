"""The copying task: the transition of a recurrent net, whose other weights are trained, too."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from skewflow.nn import OrthogonalRNN, torus_

from ...data.sequences import Copying
from ...models.recurrent import COPYING, SequenceNet
from ...runs.seeds import spawn
from .problem import Problem

HELD_OUT = 10**6
"""Number of a batch that no training reaches."""
APART = 10**5
"""Batches between the first of one order and the first of the next."""


class CopyingNet(Problem):
    """The transition matrix of an orthogonal recurrent net on `Copying`.

    RMSprop steps the free weights with the rates of `COPYING`, the same for every method; this is a
    part of `gradient`, and so is its time. The loss is that of a held-out batch, and its optimum is
    zero.
    """

    optimum = 0.0
    deterministic = False

    def __init__(
        self,
        hidden: int,
        delay: int,
        batch: int,
        *,
        device: torch.device | str,
        seed: int = 0,
        unit: float | None = None,
        order: int = 0,
    ) -> None:
        super().__init__((hidden, hidden), device, seed)
        self._first = order * APART
        self._sizes = hidden, delay, batch
        self.task = Copying(delay, batch=batch, seed=seed, device=self.device)
        number = int(torch.randint(2**31, (), generator=spawn(seed, "weights")))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            layer = OrthogonalRNN(self.task.inputs, hidden)
            torus_(layer.cell.weight_hh)
            self.net = SequenceNet(layer, hidden, self.task.classes).to(self.device)
        self.weight = layer.cell.weight_hh
        self._start = self.weight.detach().clone()
        groups: list[dict[str, Any]] = [
            {"params": [*layer.cell.input.parameters(), *self.net.head.parameters()]},
            {
                "params": [*layer.cell.activation.parameters()],
                "lr": COPYING.bias / self.task.length,
            },
        ]
        self._free = torch.optim.RMSprop(groups, lr=COPYING.free, alpha=0.9)
        if unit is None:
            self.normalise()
        else:
            self.unit = unit

    def gradient(self, X: Float[Tensor, "h h"], step: int) -> Float[Tensor, "h h"]:
        """The gradient of the transition; the other weights are stepped."""
        with torch.enable_grad():
            with torch.no_grad():
                self.weight.copy_(X)
            loss = self.task.loss(self.net, *self.task.batch(self._first + step))
            self.net.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        self._free.step()
        assert self.weight.grad is not None
        return self.weight.grad * self.unit

    @torch.no_grad()
    def loss(self, X: Float[Tensor, "h h"]) -> float:
        """The loss on the held-out batch, with the current other weights."""
        self.weight.copy_(X)
        return float(self.task.loss(self.net, *self.task.batch(HELD_OUT)))

    def fresh(self, order: int = 0) -> "CopyingNet":
        """A new net with the initial weights."""
        same: dict[str, Any] = {"device": self.device, "seed": self.seed, "unit": self.unit}
        return CopyingNet(*self._sizes, **same, order=order)
