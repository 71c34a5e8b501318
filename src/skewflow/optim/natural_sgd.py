"""NaturalSGD: gradients in factors, divided by their second moment (not in the paper)."""

from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor

from ..errors import FactorError
from ..kernels.natural_factors.dispatch import KEYS, begin_moment
from ..kernels.update import Update
from .base import OrthogonalOptimizer
from .moved_options import says_what_moved
from .weight import Weight

FIXED = {
    "block_size": "auto",
    "sampler": "sweep",
    "retraction": "auto",
    "foreach": None,
    "natural": True,
}
"""Options that the groups hold for code that serves all optimisers."""


class NaturalSGD(OrthogonalOptimizer):
    r"""Exact steps by the factors of a gradient, divided by their second moment.

    Gradients that come in factors are divided by the second moment of the factors on the shorter
    side, weighted by the lengths of the others, over all steps: its inverse is updated in $O(k^2r)$
    a step and takes $k^2$ memory. Past samples keep their weight, as in a least-squares fit, so the
    steps shrink by themselves; a gradient ten times as long as the first one restarts the moment.
    There is neither momentum nor a choice of blocks. A weight whose gradient is not in factors
    raises an error. See docs/explanation/which-step.md.

    Args:
        params: Orthogonal weights, or groups of them, as in `FlowSGD`.
        lr: Step size.
        maximize: Ascend.
        seed: Seed of the checks.
        check_every: Steps between two checks of $X^\top X = I$, as in `FlowSGD`.
        nonfinite: "raise", or "skip" a parameter whose factors are not finite.
        weight_decay: Must be 0, as in `FlowSGD`.

    Example:
        >>> import torch
        >>> from skewflow.nn import OrthogonalLinear
        >>> from skewflow.optim import capture_factors
        >>> layer = OrthogonalLinear(16, 4, bias=False)
        >>> _ = capture_factors(layer)
        >>> optimizer = NaturalSGD(layer.parameters(), lr=0.1)
        >>> layer(torch.randn(2, 16)).square().sum().backward()
        >>> optimizer.step()
        >>> W = layer.weight.detach()
        >>> bool(torch.allclose(W @ W.mT, torch.eye(4), atol=1e-5))
        True
    """

    @says_what_moved
    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        *,
        maximize: bool = False,
        seed: int = 0,
        check_every: int = 256,
        nonfinite: Literal["raise", "skip"] = "raise",
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "maximize": maximize,
            "seed": seed,
            "check_every": check_every,
            "nonfinite": nonfinite,
            "weight_decay": weight_decay,
            **FIXED,
        }
        super().__init__(params, defaults)

    def _update(self, group: dict[str, Any]) -> Update:
        return Update(lr=float(group["lr"]), seed=group["seed"], maximize=group["maximize"])

    def _prepare(self, group: dict[str, Any], weight: Weight) -> None:
        raise FactorError(
            f"natural steps need the factors of a gradient: {weight.name} has a gradient. Capture "
            "those of its layer with `capture_factors`, give `step` its factors, or give the "
            "weight to `FlowSGD`."
        )

    def _begin_moments(self, group: dict[str, Any], weight: Weight) -> None:
        state = self.state[weight.p]
        if KEYS[0] not in state:
            begin_moment(state, weight.matrices(state)[0])
