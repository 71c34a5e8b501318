"""What the state of a weight holds from the beginning, so that a saved state can be loaded into it.

`torch.distributed.checkpoint` loads only entries that a new optimiser has, and takes a step with a
zero gradient in one that has none.
"""

from typing import Any

import torch

from ..kernels.permutation.reference import make_key, scalar
from .auto import choice_for
from .options import is_fused, make_sampler
from .weight import Weight


@torch.no_grad()
def begin_state(state: dict[str, Any], group: dict[str, Any], weight: Weight) -> None:
    """Make what every way of stepping needs and the state lacks; moments are the optimiser's."""
    weight.points(state)  # the master of a half precision weight
    for count in ("polishes", "turns"):
        state.setdefault(count, 0)
    choice = choice_for(weight, group)
    if choice.size != "dense" and not is_fused(group["sampler"]):
        begin_samplers(state, group, weight, choice.size)
    if group["nonfinite"] == "skip" and "skipped" not in state:
        state["skipped"] = torch.zeros((), dtype=torch.int64, device=weight.p.device)


def begin_samplers(
    state: dict[str, Any], group: dict[str, Any], weight: Weight, size: int | str
) -> None:
    """Make the samplers of a weight, one for each matrix, and what they draw from."""
    assert isinstance(size, int)
    if "samplers" not in state:
        made = [make_sampler(group["sampler"], size) for _ in range(weight.num_matrices)]
        state["samplers"] = made
    if "generator" not in state:
        state["generator"] = _generator(group["seed"], weight.stream)


def _generator(seed: int, stream: int) -> torch.Generator:
    """What the samplers of a weight draw from, on the CPU, since they decide on the host anyway."""
    cpu = torch.device("cpu")
    # Hashed, because a CPU generator takes only the low 32 bits of its seed.
    key = make_key(scalar(seed, cpu), scalar(stream, cpu), scalar(0, cpu))
    return torch.Generator().manual_seed(int(key))
