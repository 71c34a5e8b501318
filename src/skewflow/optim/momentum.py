"""Base of the optimisers with torch's momentum: its buffer, and the check against factors."""

from typing import Any

import torch

from ..errors import FactorError
from ..kernels.update import Update
from .auto import block_retraction
from .base import OrthogonalOptimizer
from .weight import Weight


class MomentumOptimizer(OrthogonalOptimizer):
    r"""Steps along $M \leftarrow \mu M + G$, of gradients or of factors, but not of both."""

    def _update(self, group: dict[str, Any]) -> Update:
        # The gradient of the matrix with columns of length 1 is `scale` times that of the weight.
        return Update(
            lr=float(group["lr"]) * (1.0 if "angle" in group else group["scale"]),
            seed=group["seed"],
            momentum=group["momentum"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            retraction=block_retraction(group),
            independent=group["sampler"] == "uniform",
            num_draws=group.get("num_draws", 1),
        )

    def _prepare(self, group: dict[str, Any], weight: Weight) -> None:
        state = self.state[weight.p]
        if group["momentum"] > 0 and "factors_a" in state:
            raise FactorError(
                f"{weight.name} must be stepped either by gradients or by factors when there is "
                "momentum: its momentum is that of factors. Make a new optimiser, or set "
                "`momentum` to 0."
            )
        self._begin_moments(group, weight)

    def _begin_moments(self, group: dict[str, Any], weight: Weight) -> None:
        state = self.state[weight.p]
        by_factors = "factors_a" in state
        if group["momentum"] > 0 and not by_factors and "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight.points(state).detach())
