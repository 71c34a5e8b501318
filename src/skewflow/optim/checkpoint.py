"""Saved states: packing, checking and unpacking them."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import SamplingError, ShapeError
from ..kernels.natural_factors.dispatch import KEYS
from ..samplers import Sampler
from .auto import choice_for
from .old_states import renewed
from .options import is_fused
from .packed_samplers import pack_samplers, unpack_samplers
from .weight import Weight


@dataclass
class Loaded:
    """A state that fits the optimiser that loads it.

    Args:
        steps: Steps done.
        groups: The saved groups, under today's names of the options.
        samplers: The sampler of each group.
        states: The state of each parameter.
    """

    steps: int
    groups: list[dict[str, Any]]
    samplers: list[str | Sampler]
    states: dict[Tensor, dict[str, Any]]


def settle(
    weights: Mapping[Tensor, Weight], states: Mapping[Tensor, dict[str, Any]], steps: int
) -> None:
    """Bring states up to date that are saved after `steps` steps."""
    for p, weight in weights.items():
        state = states.get(p, {})
        if weight.is_behind(state):
            weight.renew_master(state)
        if "since" in state:
            state["since"] += steps - weight.present_until
        weight.present_until = steps


def pack(packed: dict[str, Any], steps: int, rows: Sequence[int]) -> dict[str, Any]:
    """Turn what torch has packed into plain data, in place: tensors, numbers, and dicts of them.

    Args:
        packed: The state by torch.
        steps: Steps done, which are saved with the groups.
        rows: For each parameter, by its number, the rows of its matrices.
    """
    for group in packed["param_groups"]:
        group["step"] = steps
        if isinstance(group["sampler"], Sampler):
            group["sampler"] = type(group["sampler"]).__name__
    for index, state in packed["state"].items():
        packed["state"][index] = {k: _pack(k, v, rows[index]) for k, v in state.items()}
    return packed


def _pack(key: str, value: Any, d: int) -> Any:
    if key == "samplers":
        return pack_samplers(value, d)
    return value.get_state() if isinstance(value, torch.Generator) else value


def unpack(
    state_dict: dict[str, Any],
    live: Sequence[dict[str, Any]],
    weights: Mapping[Tensor, Weight],
    options: Mapping[str, Any],
) -> Loaded | None:
    """Check a state, and unpack it; nothing is changed.

    Args:
        state_dict: The state.
        live: The groups of the optimiser that loads it; sampler objects stay those of it.
        weights: Its weights.
        options: Its options.

    Returns:
        The state; None where the groups differ in number or length, for which torch has errors.

    Raises:
        ValueError: If another optimiser wrote it, or entries are missing.
        ShapeError: If it belongs to weights of other shapes.
    """
    groups = _groups_of(state_dict, options)
    ours, theirs = ([len(group["params"]) for group in some] for some in (live, groups))
    if ours != theirs:
        return None
    samplers: list[str | Sampler] = []
    states: dict[Tensor, dict[str, Any]] = {}
    for group, saved_group in zip(live, groups, strict=True):
        if saved_group.get("scale") != group.get("scale"):
            raise ValueError(
                f"`scale` must be that of the loaded state, {saved_group['scale']:g}: got "
                f"{group['scale']:g}. Nothing was changed."
            )
        sampler = group["sampler"]
        if not isinstance(sampler, Sampler):
            sampler = saved_group["sampler"]
        if not (isinstance(sampler, Sampler) or is_fused(sampler)):
            raise SamplingError(
                f"the loaded state was drawn by a sampler of the kind {sampler}, whose settings it "
                f"does not hold. Nothing was changed; make the optimiser with this sampler."
            )
        samplers.append(sampler)
        drawn = {**saved_group, "sampler": sampler}
        for p, number in zip(group["params"], saved_group["params"], strict=True):
            saved = state_dict["state"].get(number, {})
            _check(saved, weights[p], adaptive="betas" in options)
            if weights[p].is_sharded:  # its placement may not allow the saved block size
                choice_for(weights[p], drawn)
            states[p] = _unpack(saved, drawn, weights[p])
    return Loaded(groups[0]["step"], groups, samplers, states)


def _groups_of(state_dict: dict[str, Any], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups, if one of these optimisers wrote the state."""
    for key in ("param_groups", "state"):
        if not isinstance(state_dict, dict) or key not in state_dict:
            raise ValueError(
                f"a state must have the entries 'state' and 'param_groups': {key!r} is missing. "
                "Nothing was changed; load what `state_dict()` of this optimiser returned."
            )
    groups = [renewed(group, options) for group in state_dict["param_groups"]]
    # torch adds an option `differentiable` on unpickling.
    wanted = ("step", *(key for key in options if key != "differentiable"), "params")
    for number, group in enumerate(groups):
        if group.get("natural") and "natural" not in options:
            raise ValueError(
                f"group {number} of the loaded state is one of natural steps, which `NaturalSGD` "
                "takes. Nothing was changed; load it into `NaturalSGD`."
            )
        missing = [key for key in wanted if key not in group]
        if missing:
            raise ValueError(
                f"the state must be that of the same optimiser: group {number} of the loaded state "
                f"has no `{missing[0]}`. Nothing was changed; if another optimiser wrote it, "
                "begin with a fresh state."
            )
    return groups


def _check(saved: dict[str, Any], weight: Weight, *, adaptive: bool) -> None:
    """Check that the state of one weight is whole and has its shape."""
    n, d, k = weight.view.matrices
    for whole in (KEYS, ("momentum_buffer", "exp_avg_sq", "since") if adaptive else ()):
        lost = [key for key in whole if key not in saved]
        if 0 < len(lost) < len(whole):
            raise ValueError(
                f"the loaded state must be whole: that of {weight.name} has no `{lost[0]}`. "
                "Nothing was changed; load a state that was saved in one piece."
            )
    shapes: dict[str, tuple[int, ...]] = {
        "momentum_buffer": weight.view.shape,
        "master": weight.view.shape,
        "exp_avg_sq": (n, d),
        "factors_a": (n, d),
        "factors_b": (n, k),
        KEYS[0]: (n, k, k),
        KEYS[1]: (2, n, 1, 1),
        KEYS[2]: (n, k, 1),
    }
    for key, shape in shapes.items():
        if key not in saved:
            continue
        value = saved[key]
        seen = tuple(value.shape) if isinstance(value, Tensor) else ()
        if seen[: len(shape)] != shape if key.startswith("factors") else seen != shape:
            raise ShapeError(
                f"the loaded state must have the shapes of the weights: `{key}` of "
                f"{weight.name} is {seen}, the weight {tuple(weight.p.shape)}. "
                "Nothing was changed; give the optimiser its weights in the order of the run "
                "that was saved."
            )


def _unpack(saved: dict[str, Any], group: dict[str, Any], weight: Weight) -> dict[str, Any]:
    """The saved state of one parameter, with the dtypes it was saved with.

    torch would cast every tensor to the parameter's dtype, and a float32 master to a half.
    """
    state = dict(saved)
    for key, value in saved.items():
        if key == "generator":
            state[key] = torch.Generator()
            state[key].set_state(value.cpu())
        elif key == "samplers":
            size = choice_for(weight, group).size
            if not isinstance(size, int):
                raise SamplingError(
                    f"the state holds samplers for {weight.name}, but block_size is {size!r}. "
                    "Make the optimiser with the options it was saved with."
                )
            inners = unpack_samplers(value, weight.num_matrices)
            state[key] = [deepcopy(group["sampler"]) for _ in inners]
            for sampler, inner in zip(state[key], inners, strict=True):
                sampler.load_state_dict(inner)
        elif isinstance(value, Tensor):
            state[key] = weight.own(key, value.detach()).clone().to(weight.p.device)
        elif isinstance(value, list):
            state[key] = list(value)
    return state
