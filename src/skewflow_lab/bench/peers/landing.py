"""The landing algorithm: no retraction, a field that pulls back to the manifold."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ._optimizer import InTurn, accumulated


class Landing(InTurn):
    r"""Ablin and Peyré (AISTATS 2022); tall matrices as in Ablin, Vary, Gao and Absil (2023).

    $X \leftarrow X - \eta F$ with $F = \frac12(G X^\top X - X G^\top X) + \lambda X(X^\top X - I)$.
    Both parts of F are orthogonal to each other, and the step is cut to the safe one, with which
    the distance $\|X^\top X - I\|_F$ stays below `safe`. The momentum is the gradient's.

    Args:
        params: Tall matrices, or batches of them.
        lr: Step size.
        momentum: Of the gradient.
        attraction: $\lambda$.
        safe: The largest distance from the manifold.

    Example:
        >>> X = torch.nn.Parameter(1.1 * torch.eye(4, 2))
        >>> X.grad = torch.zeros_like(X)
        >>> optimizer = Landing([X], lr=0.2)
        >>> for _ in range(100):
        ...     optimizer.step()
        >>> bool(torch.allclose(X.mT @ X, torch.eye(2)))
        True
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        attraction: float = 1.0,
        safe: float = 0.5,
    ) -> None:
        super().__init__(params, lr, momentum=momentum, attraction=attraction, safe=safe)

    def _moved(self, X: Tensor, G: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        M = accumulated(G, group["momentum"], state)
        gram = X.mT @ X
        residual = gram - torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
        turn = M @ gram - X @ (M.mT @ X)
        field = turn.mul_(0.5).add_(X @ residual, alpha=group["attraction"])
        eta = safe_step(_norm(residual), _norm(field), group["attraction"], group["safe"])
        return X - eta.clamp(max=group["lr"]) * field


def safe_step(distance: Tensor, length: Tensor, attraction: float, safe: float) -> Tensor:
    r"""The largest step after which $\|X^\top X - I\|_F \le$ `safe` is certain.

    The root of $\eta^2 g^2 - 2\eta\lambda d(1 - d) - (\epsilon - d)$ for the distance d and the
    length g of the field, and at most $1/(2\lambda)$.
    """
    pull = attraction * distance * (1 - distance)
    square = length.square()
    room = (square * (safe - distance)).clamp(min=0)
    tiny = torch.finfo(length.dtype).tiny
    root = (pull + (pull.square() + room).sqrt()) / square.clamp(min=tiny)
    return root.clamp(max=1 / (2 * attraction))


def _norm(A: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(A, keepdim=True)
