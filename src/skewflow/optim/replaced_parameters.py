"""Parameters by which other code has replaced those of an optimiser.

Trainers that shard a model after its optimiser was made, such as Accelerate with FSDP2, write the
sharded parameters into `param_groups`.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..geometry.precision import no_autocast
from .auto import choice_for
from .weight import Weight, check_kind, weight_of


@torch.no_grad()
@no_autocast()
def admitted_again(
    weights: Mapping[Tensor, Weight], groups: Sequence[dict[str, Any]]
) -> dict[Tensor, Weight]:
    """The weights after a replacement of parameters, in the same order; empty if none is new.

    A new parameter has the position and the shape of the old one, and is checked as in a new
    optimiser. All processes check sharded parameters together.

    Args:
        weights: The weights of the optimiser, in the order of its groups.
        groups: Its groups.
    """
    now = [(p, group) for group in groups for p in group["params"]]
    same = len(now) == len(weights)
    if not same or all(p is old for (p, _), old in zip(now, weights, strict=True)):
        return {}
    found: dict[Tensor, Weight] = {}
    for (p, group), (old, weight) in zip(now, weights.items(), strict=True):
        if p is old:
            found[p] = weight
            continue
        if p in weights or tuple(p.shape) != weight.view.shape:
            return {}
        check_kind(p, weight.name)
        if hasattr(old, "orthogonal_layout"):
            p.orthogonal_layout = old.orthogonal_layout
        found[p] = weight_of(p, weight.name, weight.stream, weight.present_until, weight.scale)
        choice_for(found[p], group)
        found[p].check()
    return found


def move_states(
    states: MutableMapping[Tensor, dict[str, Any]],
    old: Mapping[Tensor, Weight],
    new: Mapping[Tensor, Weight],
) -> None:
    """Give new parameters the states of the old ones; momentum gets the placement of its weight."""
    for before, (p, weight) in zip(old, new.items(), strict=True):
        if p is not before:
            states[p] = {
                key: weight.own(key, value).to(p.device) if isinstance(value, Tensor) else value
                for key, value in states.pop(before, {}).items()
            }
