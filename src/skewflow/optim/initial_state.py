"""The first state of a weight, with every entry that a saved state may have.

`torch.distributed.checkpoint` loads only entries that a new optimiser has, and takes a step with a
zero gradient if the optimiser has no state yet.
"""

from copy import deepcopy
from typing import Any

import torch

from ..kernels.permutation.reference import make_key, scalar
from .auto import choice_for
from .options import is_fused
from .weight import Weight


@torch.no_grad()
def begin_state(state: dict[str, Any], group: dict[str, Any], weight: Weight) -> None:
    """Add the entries that every way of stepping needs; the optimiser adds its moments."""
    weight.points(state)  # the master of a half precision weight
    for count in ("polishes", "turns", "unpolished"):
        state.setdefault(count, 0)
    choice = choice_for(weight, group)
    if choice.size != "dense" and not is_fused(group["sampler"]):
        begin_samplers(state, group, weight)
    if group["nonfinite"] == "skip" and "skipped" not in state:
        state["skipped"] = torch.zeros((), dtype=torch.int64, device=weight.p.device)


def begin_samplers(state: dict[str, Any], group: dict[str, Any], weight: Weight) -> None:
    """Make the samplers of a weight, one for each matrix, and their generator."""
    if "samplers" not in state:  # copies, because samplers may have state
        state["samplers"] = [deepcopy(group["sampler"]) for _ in range(weight.num_matrices)]
    if "generator" not in state:
        state["generator"] = _generator(group["seed"], weight.stream)


def _generator(seed: int, stream: int) -> torch.Generator:
    """The generator of a weight's samplers, on the CPU because samplers run on the host."""
    cpu = torch.device("cpu")
    # Hashed, because a CPU generator takes only the low 32 bits of its seed.
    key = make_key(scalar(seed, cpu), scalar(stream, cpu), scalar(0, cpu))
    return torch.Generator().manual_seed(int(key))
