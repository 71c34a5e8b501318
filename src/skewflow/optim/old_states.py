"""Converts states saved by older versions of the optimisers to today's options."""

from collections.abc import Collection
from typing import Any

from .moved_options import MOVED_SAMPLERS

STATE_VERSION = 7
"""The version of saved states, an entry of their groups. States of version 1 have no such entry; up
to version 2 the states of samplers are lists; up to version 5 groups have no `gather`, and up to
version 6 no `scale`."""

NOT_NATURAL = ("momentum", "nesterov", "factor_window")
"""Options of `FlowSGD` that natural steps did not use; `NaturalSGD` takes these steps now."""


def renewed(group: dict[str, Any], options: Collection[str]) -> dict[str, Any]:
    """A saved group with the options that have the same meaning today.

    In version 1 the sampler "uniform" was what "sweep" is now, and groups had no weight decay. Up
    to version 3 `check_every` was `guard_every`, and "exp" stood for "auto" with the block size
    "auto". Natural steps were an option of `FlowSGD`. Up to version 4 there was one draw a step.
    Samplers on the host had names.

    Args:
        group: The saved group.
        options: The options of the optimiser that loads it.
    """
    version = group.get("state_version", 1)
    group = {**group, "state_version": STATE_VERSION}
    if group.get("natural"):  # those of NaturalSGD
        group = {k: v for k, v in group.items() if k not in NOT_NATURAL}
    else:
        group.pop("natural", None)
    if version < 2 and group.get("sampler") == "uniform":
        group["sampler"] = "sweep"
    if group.get("sampler") in MOVED_SAMPLERS:
        size = group["block_size"]
        named = MOVED_SAMPLERS[group["sampler"]]
        group["sampler"] = named(size if isinstance(size, int) else 2)
    if version < 4:
        group.setdefault("weight_decay", 0.0)
        if "guard_every" in group:
            group["check_every"] = group.pop("guard_every")
        if group.get("block_size") == "auto" and group.get("retraction") == "exp":
            group["retraction"] = "auto"
    if version < 5 and "num_draws" in options:
        group.setdefault("num_draws", 1)
    if version < 6 and "gather" in options:
        group.setdefault("gather", False)
    if version < 7 and "scale" in options:
        group.setdefault("scale", 1.0)
    return group
