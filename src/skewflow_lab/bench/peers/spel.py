"""SPEL: spectral steepest descent on the Stiefel manifold."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ._optimizer import InTurn, accumulated
from ._sign import msign, nearest


class SPEL(InTurn):
    r"""Yang and Lai, Manifold constrained steepest descent (ICML 2026, arXiv:2601.21487).

    $X \leftarrow \mathrm{msign}(X - \eta\,\mathrm{msign}(P_X(M)))$ with the momentum M of the
    gradients and its tangent part $P_X(M) = M - X\,\mathrm{sym}(X^\top M)$. The sign of a tangent
    vector of a matrix that is not square is not tangent.

    Args:
        params: Tall matrices, or batches of them.
        lr: $\eta$, in radians for square matrices.
        momentum: Of the gradient.

    Example:
        >>> import torch
        >>> X = torch.nn.Parameter(torch.eye(4))
        >>> X.grad = torch.ones(4, 4).triu()
        >>> SPEL([X], lr=0.1).step()
        >>> bool(torch.allclose(X.mT @ X, torch.eye(4), atol=1e-5))
        True
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.0) -> None:
        super().__init__(params, lr, momentum=momentum)

    def _moved(self, X: Tensor, G: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        M = accumulated(G, group["momentum"], state)
        S = X.mT @ M
        direction = msign(M - X @ (S + S.mT) / 2)
        return nearest(X - group["lr"] * direction, 1.2 * group["lr"])
