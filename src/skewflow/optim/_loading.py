"""What a saved state must be to fit an optimiser; asked before anything is changed."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import SamplingError, ShapeError
from ..samplers import Sampler
from ._auto import auto_block_size
from ._natural import KEYS
from ._options import block_size_for, make_sampler
from ._weights import Weight


def check_loadable(
    state_dict: dict[str, Any], weights: Iterable[Weight], options: Iterable[str]
) -> None:
    """The state was written by one of these optimisers, for weights of these shapes in this order.

    torch itself compares the numbers of groups and of parameters in them.
    """
    groups = state_dict["param_groups"]
    for number, group in enumerate(groups):
        later = ("differentiable", "natural")  # torch adds the one on unpickling, FlowSGD the other
        wanted = ("step", *(key for key in options if key not in later))
        missing = [key for key in wanted if key not in group]
        if missing:
            raise ValueError(
                f"the state must be that of the same optimiser: group {number} of the loaded state "
                f"has no `{missing[0]}`. Nothing was changed; if another optimiser wrote it, "
                "begin with a fresh state."
            )
    indices = [index for group in groups for index in group["params"]]
    for index, weight in zip(indices, weights, strict=False):
        saved = state_dict["state"].get(index, {})
        lost = [key for key in KEYS if key not in saved]
        if 0 < len(lost) < len(KEYS):
            raise ValueError(
                f"the loaded state must be whole: that of {weight.name} has a moment, but no "
                f"`{lost[0]}`. Nothing was changed."
            )
        for key, value in saved.items():
            n, d, k = weight.view.matrices
            shape = {"factors_a": (n, d), "factors_b": (n, k), KEYS[0]: (n, k, k)}
            shape |= {KEYS[1]: (2, n, 1, 1), KEYS[2]: (n, k, 1)}
            of_points = isinstance(value, Tensor) and key in ("momentum_buffer", "master")
            fits = tuple(value.shape[: len(shape[key])]) == shape[key] if key in shape else True
            if not fits or (of_points and value.shape != weight.p.shape):
                raise ShapeError(
                    f"the loaded state must have the shapes of the weights: `{key}` of "
                    f"{weight.name} is {tuple(value.shape)}, the weight {tuple(weight.p.shape)}. "
                    "Nothing was changed; give the optimiser its weights in the order of the run "
                    "that was saved."
                )


def pack(value: Any) -> Any:
    """One value of a state as plain data."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, list):
        return [item.state_dict() if isinstance(item, Sampler) else item for item in value]
    return value


def unpack(saved: dict[str, Any], group: dict[str, Any], weight: Weight) -> dict[str, Any]:
    """The saved state of one parameter, with the dtypes it was saved with.

    torch would cast every tensor to the parameter's dtype, and a float32 master to a half.
    """
    p, state = weight.p, dict(saved)
    weight.written = -1
    for key, value in saved.items():
        if key == "generator":
            state[key] = torch.Generator()
            state[key].set_state(value.cpu())
        elif key == "samplers":
            auto = group["block_size"] == "auto"
            given = auto_block_size(weight.d, p.device) if auto else group["block_size"]
            size = block_size_for(given, weight.d)
            if not isinstance(size, int):
                raise SamplingError(
                    f"the state holds samplers for {weight.name}, but block_size is {size!r}. "
                    "Make the optimiser with the options it was saved with."
                )
            state[key] = [make_sampler(group["sampler"], size) for _ in value]
            for sampler, inner in zip(state[key], value, strict=True):
                sampler.load_state_dict(inner)
        elif isinstance(value, Tensor):
            state[key] = value.detach().clone().to(p.device)
    return state
