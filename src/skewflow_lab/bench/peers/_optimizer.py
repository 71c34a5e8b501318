"""Common base of the rivals' optimisers: a loop over parameters, and their momentum."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class InTurn(torch.optim.Optimizer, ABC):
    """An optimiser that moves one parameter after the other by `_moved`."""

    def __init__(self, params: Iterable[Tensor], lr: float, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(self._moved(p, p.grad, group, self.state[p]))

    @abstractmethod
    def _moved(self, X: Tensor, G: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        """Where a parameter goes."""


def accumulated(G: Tensor, momentum: float, state: dict[str, Any]) -> Tensor:
    """The direction of SGD with momentum: M <- momentum M + G."""
    if momentum == 0:
        return G
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(G)
    M: Tensor = state["momentum_buffer"].mul_(momentum).add_(G)
    return M


def qf(A: Tensor) -> Tensor:
    """The orthonormal factor of A = Q R whose R has a positive diagonal."""
    Q, R = torch.linalg.qr(A)
    signs = torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    return Q * signs.unsqueeze(-2).to(Q)
