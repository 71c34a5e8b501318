"""Manifold Muon: the steepest tangent direction under the spectral norm, by dual ascent."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ._optimizer import InTurn, accumulated
from ._sign import msign, nearest


class ManifoldMuon(InTurn):
    r"""Bernstein, Modular Manifolds (Thinking Machines, 2025).

    The direction A minimises $\langle M, A\rangle$ over tangent A with a spectral norm of at most
    one. Its dual is ascended by $A = \mathrm{msign}(M + 2X\Lambda)$ and $\Lambda \leftarrow \Lambda
    - \alpha_i(X^\top A + A^\top X)$ from $\Lambda = -\frac14(X^\top M + M^\top X)$ on, where
    $\alpha_i$ falls to zero on a line; then $X \leftarrow \mathrm{msign}(X - \eta A)$. For square
    matrices the first A is the solution, and no ascent is needed. $\alpha$ has the scale of M,
    which is brought to $\|M\|_F = \sqrt k$ first: the length of a gradient then does not count.

    Args:
        params: Tall matrices, or batches of them.
        lr: $\eta$.
        momentum: Of the gradient.
        ascents: Steps of the ascent; the authors take up to 100.
        alpha: The first $\alpha_i$.

    Example:
        >>> X = torch.nn.Parameter(torch.eye(4, 2))
        >>> X.grad = torch.ones(4, 2).tril()
        >>> ManifoldMuon([X], lr=0.1).step()
        >>> bool(torch.allclose(X.mT @ X, torch.eye(2), atol=1e-5))
        True
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        ascents: int = 100,
        alpha: float = 0.01,
    ) -> None:
        super().__init__(params, lr, momentum=momentum, ascents=ascents, alpha=alpha)

    def _moved(self, X: Tensor, G: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        M = accumulated(G, group["momentum"], state)
        length = torch.linalg.matrix_norm(M, keepdim=True) / X.shape[-1] ** 0.5
        M = M / length.clamp(min=torch.finfo(M.dtype).tiny)
        S = X.mT @ M
        dual = -(S + S.mT) / 4
        A = msign(M + 2 * X @ dual)
        square = X.shape[-2] == X.shape[-1]
        for i in range(0 if square else group["ascents"]):
            S = X.mT @ A
            dual = dual - group["alpha"] * (1 - i / group["ascents"]) * (S + S.mT)
            A = msign(M + 2 * X @ dual)
        return nearest(X - group["lr"] * A, 1.2 * group["lr"])
