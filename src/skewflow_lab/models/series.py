"""Exact steps by a truncated Taylor series, to reproduce how it fails (Sec. 9.1.2)."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from skewflow.geometry.matrices import MatrixView

NEGLIGIBLE = 1e-38
"""Terms below this value are not added: they are subnormal in float32, and a CPU adds subnormal
numbers many times slower."""


class SeriesSGD(torch.optim.Optimizer):
    r"""The exact step of `FlowSGD` with $\sum_{n \le T} (-lr\,\Omega)^n X / n!$ as exponential.

    The momentum is that of FlowSGD's exact steps. A weight that leaves the manifold by the error of
    the series is not corrected.

    Args:
        params: Orthogonal weights, as `FlowSGD` takes them.
        lr: Learning rate.
        terms: T, the highest power of the series.
        momentum: Factor on the momentum buffer.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, *, terms: int, momentum: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "terms": terms, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step all weights."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                    state["norm"] = torch.zeros(())
                view = MatrixView.of(p)
                X, D = view(p), view(p.grad + group["momentum"] * state["momentum_buffer"])
                S = D @ X.mT
                A = (S.mT - S) * group["lr"]
                # A skew matrix has each singular value twice.
                norm = A.norm().cpu() / 2**0.5
                state["norm"] = torch.maximum(state["norm"], norm)
                S = X.mT @ D
                state["momentum_buffer"].copy_(view.restore(D - X @ (S + S.mT) / 2))
                p.copy_(view.restore(apply_series(A, X, group["terms"])))

    def largest_norm(self) -> float:
        r"""A bound on the spectral norm of $lr\,\Omega$ over all steps and weights."""
        return max(float(state["norm"]) for state in self.state.values())


def apply_series(
    A: Float[Tensor, "*n d d"], X: Float[Tensor, "*n d k"], terms: int
) -> Float[Tensor, "*n d k"]:
    r"""$\sum_{n \le terms} A^n X / n!$, one power after the other.

    Example:
        >>> apply_series(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), torch.eye(2), terms=2)
        tensor([[ 0.5000,  1.0000],
                [-1.0000,  0.5000]])
    """
    term = total = X
    for n in range(1, terms + 1):
        term = A @ term / n
        if term.abs().amax() < NEGLIGIBLE:
            break
        total = total + term
    return total
