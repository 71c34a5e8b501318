"""What a saved state must be to fit an optimiser; asked before anything is changed."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..errors import ShapeError
from ._weights import Weight


def check_loadable(state_dict: dict[str, Any], weights: Iterable[Weight]) -> None:
    """The state was written by one of these optimisers, for weights of these shapes in this order.

    torch itself compares the numbers of groups and of parameters in them.
    """
    groups = state_dict["param_groups"]
    for number, group in enumerate(groups):
        if "step" not in group:
            raise ValueError(
                f"the state must be that of an optimiser of skewflow: group {number} of the loaded "
                "state has no step count. Nothing was changed; if another optimiser wrote it, "
                "begin with a fresh state."
            )
    indices = [index for group in groups for index in group["params"]]
    for index, weight in zip(indices, weights, strict=False):
        for key, value in state_dict["state"].get(index, {}).items():
            of_points = isinstance(value, Tensor) and key in ("momentum_buffer", "master")
            if of_points and value.shape != weight.p.shape:
                raise ShapeError(
                    f"the loaded state must have the shapes of the weights: `{key}` of "
                    f"{weight.name} is {tuple(value.shape)}, the weight {tuple(weight.p.shape)}. "
                    "Nothing was changed; give the optimiser its weights in the order of the run "
                    "that was saved."
                )
