"""Riemannian random submanifold descent: one random block of rows a step."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ._optimizer import InTurn, qf


class RSDM(InTurn):
    r"""Han, Poirion and Takeda (ICML 2025).

    A random P with r orthonormal rows picks a submanifold: $X \leftarrow X + P^\top (Y - I) P X$
    with $Y = \mathrm{qf}(I_r - \eta\,\mathrm{skew}(P G X^\top P^\top))$. P is r rows of a random
    permutation, or of a Haar matrix. Permutations read and write r rows, so that a step costs
    $O(k r^2 + r^3)$. It has no momentum.

    Args:
        params: Tall matrices, or batches of them: one draw serves a batch.
        lr: Step size.
        rows: r, as a part of all d rows; 0.45 and 0.35 are the authors' for Procrustes and PCA.
        permutation: Rows of a permutation, or of a Haar matrix.
        seed: Of the draws.

    Example:
        >>> X = torch.nn.Parameter(torch.eye(6))
        >>> X.grad = torch.ones(6, 6).triu()
        >>> RSDM([X], lr=0.5, rows=0.5).step()
        >>> int((X != torch.eye(6)).any(-1).sum())
        3
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        rows: float = 0.4,
        permutation: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(params, lr, rows=rows, permutation=permutation, seed=seed)

    def _moved(self, X: Tensor, G: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        if "generator" not in state:
            state["generator"] = torch.Generator(X.device).manual_seed(group["seed"])
        d, generator = X.shape[-2], state["generator"]
        r = min(d, max(2, round(group["rows"] * d)))
        if group["permutation"]:
            index = torch.randperm(d, generator=generator, device=X.device)[:r]
            PX, PG = X[..., index, :], G[..., index, :]
            return X.index_copy(-2, index, _turn(PX, PG, group["lr"]) @ PX)
        P = torch.randn(d, r, generator=generator, dtype=X.dtype, device=X.device)
        P = torch.linalg.qr(P).Q
        PX = P.mT @ X
        Y = _turn(PX, P.mT @ G, group["lr"])
        return X + P @ (Y @ PX - PX)


def _turn(X: Tensor, G: Tensor, lr: float) -> Tensor:
    S = G @ X.mT
    A = S.mT.sub(S).mul_(lr / 2)
    A.diagonal(dim1=-2, dim2=-1).add_(1)
    return qf(A)
