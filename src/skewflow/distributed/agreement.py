"""Whether processes that share weights would step them alike."""

from typing import Any

import torch
from torch import distributed as dist

from ..optim.base import OrthogonalOptimizer


def check_agreement(
    optimizer: OrthogonalOptimizer, group: "dist.ProcessGroup | None" = None
) -> None:
    """Raise in every process if one would step its weights otherwise.

    In data-parallel training each process steps its own copy of a weight. With other seeds or
    options the copies drift apart in silence, as each one stays orthogonal. Call this once, in all
    processes, after the optimiser is made or a state is loaded: it gathers the options, the shapes
    and the count of steps. Not in the paper.

    Args:
        optimizer: A `FlowSGD` or `FlowAdam`.
        group: The processes; all of them when omitted.

    Raises:
        ValueError: If something differs; the first such option is named.
    """
    mine = [_facts(param_group) for param_group in optimizer.param_groups]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    for rank, theirs in enumerate(everyone):
        if len(theirs) != len(everyone[0]):
            raise ValueError(
                "processes that share their weights must have the same groups: process 0 has "
                f"{len(everyone[0])}, process {rank} has {len(theirs)}."
            )
        for number, (first, other) in enumerate(zip(everyone[0], theirs, strict=True)):
            for key in first:
                if first[key] != other.get(key):
                    raise ValueError(
                        "processes that share their weights must step them alike, or the weights "
                        f"drift apart: `{key}` of group {number} is {first[key]} in process 0 and "
                        f"{other.get(key)} in process {rank}. Give the optimiser the same options "
                        "in every process."
                    )


def _facts(group: dict[str, Any]) -> dict[str, str]:
    """What has to be the same, as text."""
    facts = {
        key: str(float(value) if isinstance(value, torch.Tensor) else value)
        for key, value in group.items()
        if key != "params"
    }
    return {**facts, "shapes of params": str([tuple(p.shape) for p in group["params"]])}
