"""States that older versions of the optimisers have saved, under today's names of the options."""

from typing import Any

STATE_VERSION = 4
"""The version of saved states, an entry of their groups. States of version 1 have no such entry; up
to version 2 the states of samplers are lists."""


def renewed(group: dict[str, Any]) -> dict[str, Any]:
    """A saved group with the options that mean today what they meant when it was saved.

    In version 1 the sampler "uniform" was what "sweep" is now, and groups had no weight decay. Up
    to version 3 `check_every` was `guard_every`, and "exp" stood for "auto" with the block size
    "auto".
    """
    version = group.get("state_version", 1)
    group = {**group, "state_version": STATE_VERSION}
    if "momentum" in group:
        group.setdefault("natural", False)
    if version < 2 and group.get("sampler") == "uniform":
        group["sampler"] = "sweep"
    if version < 4:
        group.setdefault("weight_decay", 0.0)
        if "guard_every" in group:
            group["check_every"] = group.pop("guard_every")
        if group.get("block_size") == "auto" and group.get("retraction") == "exp":
            group["retraction"] = "auto"
    return group
