"""Cayley SGD with a momentum that is kept."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ._optimizer import InTurn, qf


class CayleySGD(InTurn):
    r"""Algorithm 1 of Li, Fuxin and Todorovic (ICLR 2020).

    The momentum $M \leftarrow \beta M - G$ is projected on the tangent space, $M \leftarrow W X$
    with $W = \hat W - \hat W^\top$ and $\hat W = M X^\top - \frac12 X (X^\top M X^\top)$. Cayley's
    transform is approached by s fixed-point iterations $Y \leftarrow X + \frac\alpha2 W (X + Y)$,
    with $\alpha = \min(\eta, 2q / \|W\|)$. The code that its authors and others ship throws the
    momentum away; this one does not. As theirs does once in about a hundred steps, it comes back
    to the manifold by a QR decomposition.

    Args:
        params: Tall matrices, or batches of them.
        lr: $\eta$.
        momentum: $\beta$.
        iterations: s.
        contraction: q.
        qr_every: Steps between two QR decompositions.

    Example:
        >>> X = torch.nn.Parameter(torch.eye(3, 2))
        >>> X.grad = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
        >>> optimizer = CayleySGD([X], lr=0.1, momentum=0.9)
        >>> optimizer.step()
        >>> [round(v, 4) for v in X[0].tolist()]
        [0.9987, -0.05]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        iterations: int = 2,
        contraction: float = 0.5,
        qr_every: int = 100,
    ) -> None:
        options = {"iterations": iterations, "contraction": contraction, "qr_every": qr_every}
        super().__init__(params, lr, momentum=momentum, **options)

    def _moved(self, X: Tensor, G: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        state["steps"] = steps = state.get("steps", 0) + 1
        momentum = group["momentum"]
        M = state["momentum_buffer"].mul(momentum).sub_(G) if "momentum_buffer" in state else -G
        apply, norm = _generator(X, M)
        M = apply(X)
        if momentum > 0:
            state["momentum_buffer"] = M
        tiny = torch.finfo(norm.dtype).tiny
        alpha = (2 * group["contraction"] / norm.clamp(min=tiny)).clamp(max=group["lr"])
        Y = X + alpha * M
        for _ in range(group["iterations"]):
            Y = X + alpha / 2 * (M + apply(Y))
        return qf(Y) if steps % group["qr_every"] == 0 else Y


def _generator(X: Tensor, M: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """W as a function, and its norm: for thin matrices without a (d, d) one."""
    d, k = X.shape[-2:]
    Z = M - X @ (X.mT @ M) / 2
    if 2 * k >= d:
        S = Z @ X.mT
        W = S - S.mT
        return lambda V: W @ V, torch.linalg.matrix_norm(W, keepdim=True)
    # ||Z X^T - X Z^T||^2 = 2 <Z^T Z, X^T X> - 2 <Z^T X, X^T Z>, and X^T X = I.
    inner = X.mT @ Z
    square = Z.square().sum((-2, -1), keepdim=True)
    square = square - (inner * inner.mT).sum((-2, -1), keepdim=True)
    norm = (2 * square).clamp(min=0).sqrt()
    return lambda V: Z @ (X.mT @ V) - X @ (Z.mT @ V), norm
