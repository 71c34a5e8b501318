"""Intrinsic Muon (iMuon): the two parts of a tangent vector, each with its own sign."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ._optimizer import InTurn, accumulated
from ._sign import msign, nearest


class IntrinsicMuon(InTurn):
    r"""Li, Pandey, Sah, Han, Mostajeran, Jawanpuria and Mishra (arXiv:2605.09238), Stiefel.

    $X \leftarrow \mathrm{polar}(X - \eta\xi)$ with $\xi = X\,\mathrm{msign}(\mathrm{skew}(X^\top
    M)) + \mathrm{msign}((I - XX^\top)M)$: the steepest descent where the norm of a tangent vector
    is the larger spectral norm of its two parts. The direction is tangent. The paper's Stiefel
    experiments have no momentum; this M is that of the gradients, as in Muon.

    Args:
        params: Tall matrices, or batches of them.
        lr: $\eta$.
        momentum: Of the gradient.

    Example:
        >>> import torch
        >>> X = torch.nn.Parameter(torch.eye(4, 2))
        >>> X.grad = torch.ones(4, 2).tril()
        >>> IntrinsicMuon([X], lr=0.1).step()
        >>> bool(torch.allclose(X.mT @ X, torch.eye(2), atol=1e-5))
        True
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.0) -> None:
        super().__init__(params, lr, momentum=momentum)

    def _moved(self, X: Tensor, G: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        M = accumulated(G, group["momentum"], state)
        S = X.mT @ M
        direction = X @ msign(S - S.mT)
        if X.shape[-2] > X.shape[-1]:
            direction = direction + msign(M - X @ S)
        return nearest(X - group["lr"] * direction, 1.5 * group["lr"])
