"""AngleSGD: steps whose learning rate is an angle in radians (not in the paper)."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from ..kernels.update import Update
from ..samplers import Sampler
from .momentum import MomentumOptimizer
from .moved_options import says_what_moved

DEFAULT_LR = 0.11
"""Radians; `skewflow bench learning-rate` has the losses at this rate beside the best ones."""


class AngleSGD(MomentumOptimizer):
    r"""SGD with momentum on O(d), SO(d) or ST(d, k), whose learning rate is an angle in radians.

    The generator $\Omega = D X^\top - X D^\top$ of the momentum D is brought to a fixed size before
    it turns the rows, as Muon rescales its updates: the length of the gradient does not count. So
    one learning rate serves blocks of any size, exact steps, factored steps, matrices of any size
    and every device. The best rate of `FlowSGD` changes with all of them; `skewflow bench
    learning-rate` compares both. Steps do not shrink by themselves: let the learning rate end at
    zero,

        torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)

    The momentum turns with its rows, or is tangent after an exact step, as in `FlowSGD`. The other
    options are those of `FlowSGD`. On CUDA block steps have no fused kernel: they run as plain
    torch, wait for the device, and cannot be captured in a CUDA graph.

    Args:
        params: Orthogonal weights, or groups of them, as in `FlowSGD`.
        lr: Radians by which a step turns.
        momentum: $\mu$.
        nesterov: Use $G + \mu M$ as the direction.
        angle: "spectral" turns every plane that a step can turn by about lr; blocks have fewer such
            planes than exact steps. It uses the sign of the generator, which Newton-Schulz steps
            find to a few percent, and doubles the cost of turning the blocks. Pairs, a plane each,
            turn by the soft sign of their entry: by lr at its root mean square, by at most 2.24
            times that. "rms": lr is the root-mean-square angle of these planes; this costs one
            number a step.
        block_size: s; "dense" for exact steps. "auto" takes exact steps, to the nearest point,
            where they are cheap, and elsewhere the largest measured size whose step costs at most
            twice that of SGD.
        sampler: "sweep", "uniform", or a `Sampler`, as in `FlowSGD`. Its weight does
            not count.
        retraction: "auto", "exp", "cayley", or, for dense steps, "polar", as in `FlowSGD`.
        maximize: Ascend.
        seed: Seed of every draw.
        check_every: As in `FlowSGD`.
        nonfinite: "raise", or "skip" a parameter whose gradient is not finite.
        foreach: False takes exact steps once for each parameter.
        gather: Gather sharded weights where needed, as in `FlowSGD`.
        factor_window: Steps that the momentum of factors remembers, as in `FlowSGD`.
        scale: Length of the columns, as in `FlowSGD`; it does not change the angles.
        weight_decay: Must be 0, as in `FlowSGD`.

    Example:
        >>> import torch
        >>> from skewflow.nn import orthogonal_
        >>> g = torch.Generator().manual_seed(0)
        >>> W = torch.nn.Parameter(orthogonal_(torch.empty(8, 8), generator=g))
        >>> target = orthogonal_(torch.empty(8, 8), generator=g)
        >>> target[0] *= (torch.linalg.det(W) * torch.linalg.det(target)).sign().detach()
        >>> optimizer = AngleSGD([W])
        >>> schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=300)
        >>> for _ in range(300):
        ...     optimizer.zero_grad()
        ...     ((W - target) ** 2).sum().backward()
        ...     optimizer.step()
        ...     schedule.step()
        >>> bool(torch.allclose(W, target, atol=1e-2))
        True
    """

    @says_what_moved
    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = DEFAULT_LR,
        momentum: float = 0.9,
        *,
        nesterov: bool = False,
        angle: Literal["rms", "spectral"] = "spectral",
        block_size: int | Literal["dense", "auto"] = "auto",
        sampler: Literal["sweep", "uniform"] | Sampler = "sweep",
        retraction: Literal["auto", "exp", "cayley", "polar"] = "auto",
        maximize: bool = False,
        seed: int = 0,
        check_every: int = 256,
        nonfinite: Literal["raise", "skip"] = "raise",
        foreach: bool | None = None,
        gather: bool = False,
        factor_window: int = 4,
        scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "angle": angle,
            "block_size": block_size,
            "sampler": sampler,
            "retraction": retraction,
            "maximize": maximize,
            "seed": seed,
            "check_every": check_every,
            "nonfinite": nonfinite,
            "foreach": foreach,
            "gather": gather,
            "factor_window": factor_window,
            "scale": scale,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    def _update(self, group: dict[str, Any]) -> Update:
        return replace(super()._update(group), angle=group["angle"])
