"""Trainings whose whole state is a count of steps, a net and its optimisers."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


class Resumable:
    """A training that a stopped run goes on with, to the bit."""

    step: int
    net: nn.Module
    optimizers: Sequence[Optimizer]

    def state_dict(self) -> dict[str, Any]:
        """Everything that a stopped training needs to go on."""
        return {
            "step": self.step,
            "net": self.net.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.step = state["step"]
        self.net.load_state_dict(state["net"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
