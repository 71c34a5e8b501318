"""FlowAdam: adaptive steps on orthogonal matrices (not in the paper)."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from ..kernels.update import Update
from ..samplers import Sampler
from .auto import block_retraction
from .base import OrthogonalOptimizer
from .moved_options import says_what_moved
from .weight import Weight


class FlowAdam(OrthogonalOptimizer):
    r"""Adam whose steps stay on O(d), SO(d) or ST(d, k).

    The first moment M is kept as the momentum of `FlowSGD`: turned with its rows, or tangent after
    an exact step. It gives the generator $\Omega = M X^\top - X M^\top$. The second moment is one
    number v a row, the running mean of the squares of its gradient, and divides the generator plane
    by plane: $\Omega_{ij} / \sqrt{(v_i + v_j)/2}$. The quotient is skew and vanishes only where
    $\Omega$ does, so the stationary points are those of the loss; dividing M itself, row by row or
    element by element, moves them (`skewflow bench second-moment` has the comparison). A dense step
    of a matrix with 2k < d, which never forms $\Omega$, divides by the mean of all rows.

    Then the planes are sampled and turned as in `FlowSGD`. The first step turns every sampled plane
    by about $lr \frac{d-1}{s-1}$. The other options are those of `FlowSGD`.

    Args:
        params: Orthogonal weights, or groups of them, as in `FlowSGD`.
        lr: Step size.
        betas: Memory of the first and of the second moment.
        eps: Added to the root of the second moment.
        block_size: s; "dense"; or "auto", exact steps, as in `FlowSGD`. A CUDA graph cannot
            capture these: give a size there.
        sampler: "sweep", "uniform", or a `Sampler`, as in `FlowSGD`.
        retraction: "auto", "exp", "cayley", or, for dense steps, "polar", as in `FlowSGD`; "auto"
            is "exp".
        maximize: Ascend.
        seed: Seed of every draw.
        check_every: As in `FlowSGD`.
        nonfinite: "raise", or "skip" a parameter whose gradient is not finite.
        foreach: False launches the CUDA kernels once for each parameter.
        gather: Gather sharded weights where needed, as in `FlowSGD`.
        scale: Length of the columns, as in `FlowSGD`.
        weight_decay: Must be 0, as in `FlowSGD`.

    Example:
        >>> from skewflow.nn import orthogonal_
        >>> g = torch.Generator().manual_seed(0)
        >>> W = torch.nn.Parameter(orthogonal_(torch.empty(8, 8), generator=g))
        >>> target = orthogonal_(torch.empty(8, 8), generator=g)
        >>> optimizer = FlowAdam([W], lr=0.01, block_size=2)
        >>> for _ in range(300):
        ...     optimizer.zero_grad()
        ...     ((W - target) ** 2).sum().backward()
        ...     optimizer.step()
        >>> bool(torch.allclose(W.mT @ W, torch.eye(8), atol=1e-5))
        True
    """

    @says_what_moved
    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        block_size: int | Literal["dense", "auto"] = "auto",
        sampler: Literal["sweep", "uniform"] | Sampler = "sweep",
        retraction: Literal["auto", "exp", "cayley", "polar"] = "auto",
        maximize: bool = False,
        seed: int = 0,
        check_every: int = 256,
        nonfinite: Literal["raise", "skip"] = "raise",
        foreach: bool | None = None,
        gather: bool = False,
        scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "block_size": block_size,
            "sampler": sampler,
            "retraction": retraction,
            "maximize": maximize,
            "seed": seed,
            "check_every": check_every,
            "nonfinite": nonfinite,
            "foreach": foreach,
            "gather": gather,
            "scale": scale,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    def _update(self, group: dict[str, Any]) -> Update:
        beta1, beta2 = group["betas"]
        return Update(
            lr=float(group["lr"]),
            seed=group["seed"],
            momentum=float(beta1),
            maximize=group["maximize"],
            retraction=block_retraction(group),
            beta2=float(beta2),
            eps=float(group["eps"]),
            independent=group["sampler"] == "uniform",
        )

    def _prepare(self, group: dict[str, Any], weight: Weight) -> None:
        state, now = self.state[weight.p], self._shared.clock.time(weight.p.device)
        if "momentum_buffer" in state:
            state["since"] += now - weight.present_until  # steps without a gradient
            weight.present_until = now
        self._begin_moments(group, weight)

    def _begin_moments(self, group: dict[str, Any], weight: Weight) -> None:
        state = self.state[weight.p]
        if "momentum_buffer" in state:
            return
        points, shape = weight.points(state).detach(), (weight.num_matrices, weight.d)
        state["momentum_buffer"] = torch.zeros_like(points)
        state["exp_avg_sq"] = torch.zeros(shape, dtype=points.dtype, device=points.device)
        # Steps before it was added.
        state["since"] = weight.present_until = self._shared.clock.time(weight.p.device)
