"""The options of a parameter group: checked once, and turned into what a step needs."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal

import torch

from .. import _validate
from ..errors import BlockSizeError
from ..samplers import (
    HeavyMatchings,
    HRegular,
    Optimal,
    RelabelledRoundRobin,
    RoundRobin,
    Sampler,
    Uniform,
)

SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "uniform": Uniform,
    "round_robin": lambda s: RoundRobin(block_size=s),
    "relabelled_round_robin": RelabelledRoundRobin,
    "h_regular": HRegular,
    "optimal": Optimal,
    "heavy_matchings": lambda s: HeavyMatchings(),
}
"""Samplers by name, given the block size."""


def check_options(group: dict[str, Any]) -> None:
    """Every option is of its kind and fits the others."""
    lr = group.get("lr")
    if isinstance(lr, torch.Tensor) and lr.numel() != 1:
        raise ValueError(f"`lr` must be a number or one element: got shape {tuple(lr.shape)}.")
    for name in ("lr", "momentum"):
        if name in group and not group[name] >= 0:
            raise ValueError(f"`{name}` must be at least 0: got {group[name]}.")
        if name in group and group[name] == float("inf"):
            raise ValueError(f"`{name}` must be finite: got {group[name]}.")
    if len(group.get("betas", (0, 0))) != 2:
        raise ValueError(f"`betas` must be two numbers: got {group['betas']}.")
    for place, beta in enumerate(group.get("betas", ())):
        if not 0 <= beta < 1:
            raise ValueError(f"`betas` must lie in [0, 1): got {beta} at place {place}.")
    if not group.get("eps", 1.0) > 0:
        raise ValueError(
            f"`eps` must be above 0, as rows may have no gradient: got {group['eps']}."
        )
    _validate.count(group.get("factor_window", 1), "factor_window")
    if group.get("nesterov") and not group["momentum"] > 0:
        raise ValueError(f"`nesterov` needs a momentum above 0: got {group['momentum']}.")
    natural = group.get("natural", False)
    if not isinstance(natural, bool):
        raise TypeError(f"`natural` must be True or False: got {natural!r}.")
    if natural and "betas" in group:
        raise ValueError("`natural` is an option of FlowSGD: FlowAdam has other second moments.")
    if natural and group["momentum"] > 0:
        raise ValueError(
            f"natural steps have no momentum, they remember otherwise: got {group['momentum']}. "
            "Set `momentum` to 0, or `natural` to False."
        )
    size, sampler, retraction = group["block_size"], group["sampler"], group["retraction"]
    if isinstance(size, bool) or not (size in ("auto", "dense") or isinstance(size, int)):
        raise BlockSizeError(
            f'`block_size` must be an integer from 2 on, "dense" or "auto": got {size!r}.'
        )
    if isinstance(size, int) and size < 2:
        raise BlockSizeError(f"`block_size` must be at least 2, a matching: got {size}.")
    if not isinstance(sampler, Sampler):
        _validate.one_of(sampler, tuple(sorted(SAMPLERS)), "sampler")
    if sampler == "heavy_matchings" and size not in (2, "auto"):
        raise BlockSizeError(f"heavy matchings have block_size=2: got {size!r}.")
    if natural and (isinstance(size, int) or retraction != "exp"):
        raise ValueError(
            f"natural steps are exact exponentials: got block_size={size!r} and "
            f'retraction={retraction!r}. Use block_size="dense" or "auto", and retraction="exp".'
        )
    _validate.one_of(group["nonfinite"], ("raise", "skip"), "nonfinite")
    _validate.one_of(retraction, ("exp", "cayley", "polar"), "retraction")
    if retraction == "polar" and size != "dense":
        raise ValueError(
            f'`retraction="polar"` is a dense step: got block_size={size!r}. '
            'Use block_size="dense", or retraction="exp".'
        )


def block_size_for(block_size: int | str, d: int) -> int | str:
    """The block size of matrices of d rows: an integer below d, or "dense".

    An integer is the most: matrices with fewer rows are stepped exactly.
    """
    return block_size if isinstance(block_size, int) and block_size < d else "dense"


def exact_retraction(
    group: dict[str, Any], device: torch.device
) -> Literal["exp", "cayley", "polar"]:
    """How exact steps are taken: "auto" goes to the nearest point, in the fewest products.

    On CUDA it gives `FlowAdam` no exact steps but those of matrices with fewer rows than a block.
    """
    polar = group["block_size"] == "auto" and group["retraction"] == "exp"
    polar = polar and ("betas" not in group or device.type == "cpu")
    retraction: Literal["exp", "cayley", "polar"] = group["retraction"]
    return "polar" if polar else retraction


def make_sampler(sampler: str | Sampler, block_size: int) -> Sampler:
    """A sampler for one matrix; an object is copied, since samplers may have state."""
    return deepcopy(sampler) if isinstance(sampler, Sampler) else SAMPLERS[sampler](block_size)
