"""The policy behind "auto": `AngleSGD` takes exact steps only where they are cheap, else blocks.

The other optimisers always take exact steps. The choice depends on the shape and the kind of device
only, so every run and every process makes the same one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import torch
from torch import Tensor

from ..kernels._runtime.graphs import is_capturing
from ..kernels.rotate_factored.dispatch import is_worth_it
from ..samplers import Sampler
from .options import own_block_size
from .weight import Weight

Retraction = Literal["exp", "cayley", "polar"]

MOST_OPERATIONS = {"cpu": 2e9, "cuda": 1e11}
"""Most operations of an exact step that "auto" takes: a square matrix of 630 rows on a CPU, of 2300
on CUDA. With an exact gradient blocks make (s - 1) / (d - 1) of the progress of such a step."""


@dataclass(frozen=True)
class Choice:
    """How one weight is stepped, and why.

    Args:
        size: Rows of a block, or "dense" for exact steps.
        retraction: How an exact step is taken; blocks are turned as the group's options say.
        why: A clause that follows the size in a report.
        gathered: The step needs the whole matrices of a sharded weight.
    """

    size: int | str
    retraction: Retraction
    why: str
    gathered: bool = False


def choice_for(weight: Weight, group: Mapping[str, Any]) -> Choice:
    """The step of one weight under the options of its group."""
    if weight.is_sharded:
        from .sharded.choice import sharded_choice  # torch's DTensor, on use

        return sharded_choice(weight, group)  # type: ignore[arg-type]
    return whole_choice(weight, group)


def whole_choice(weight: Weight, group: Mapping[str, Any]) -> Choice:
    """The step of a weight whose matrices are whole."""
    size, sampler, d = group["block_size"], group["sampler"], weight.d
    why = "the size of its group"
    if isinstance(sampler, Sampler):
        size = own_block_size(sampler) or (2 if size == "auto" else size)
        why = f"drawn by {sampler!r}"
    elif size == "auto":
        return auto_choice(weight.view.matrices, weight.p.device, group)
    retraction = exact_retraction(group)
    if isinstance(size, int) and size >= d:
        return Choice("dense", retraction, f"since it has no more than {size} rows")
    return Choice(size, retraction, why)


def exact_retraction(group: Mapping[str, Any]) -> Retraction:
    """The retraction of exact steps; those that "auto" chooses go to the nearest point.

    The nearest point takes the fewest products, but a step that turns one plane too far for it is
    cut as a whole. Second moments of rows with hardly any gradient turn their planes by many
    radians, so `FlowAdam` takes the exponential.
    """
    retraction: Retraction = group["retraction"]
    if group["retraction"] != "auto":
        return retraction
    return "polar" if group["block_size"] == "auto" and "betas" not in group else "exp"


def block_retraction(group: Mapping[str, Any]) -> Literal["exp", "cayley"]:
    """The retraction of blocks."""
    return "cayley" if group["retraction"] == "cayley" else "exp"


def auto_choice(
    matrices: tuple[int, int, int], device: torch.device, group: Mapping[str, Any]
) -> Choice:
    """What "auto" means for matrices (n, d, k) on a device.

    Under the unbiased law a block turns by (d - 1) / (s - 1) times the angles of an exact step. A
    choice between them would make the meaning of a learning rate depend on the size and the device.
    So `FlowSGD` and `FlowAdam` always take exact steps, except with a sampler, which draws pairs.
    The rate of `AngleSGD` means the same for all steps, so it chooses freely: blocks for samplers,
    for Cayley's transform, whose exact step solves a system, and where exact steps are expensive.
    """
    n, d, k = matrices
    retraction = exact_retraction(group)
    operations = 8.0 * n * d * k * k  # of four products
    if "angle" not in group:
        if group["sampler"] != "sweep" and d > 2:
            return Choice(2, retraction, "drawn by its sampler")
        why = f"for which lr means the same at every size; they take {operations:.0e} operations"
        return Choice("dense", retraction, why)
    size = auto_block_size(d, device)
    if size >= d:
        return Choice("dense", retraction, f"since it has no more than {size} rows")
    cheapest = "the largest size that costs at most twice SGD"
    most = MOST_OPERATIONS.get(device.type)
    blocks = group["sampler"] != "sweep" or group["retraction"] == "cayley"
    if blocks or most is None:
        return Choice(size, retraction, cheapest)
    if operations > most:
        why = f"{cheapest}; an exact step takes {operations:.0e} operations"
        return Choice(size, retraction, why)
    return Choice("dense", retraction, f"which take only {operations:.0e} operations")


def auto_block_size(d: int, device: torch.device) -> int:
    """The largest measured block size whose step costs at most twice that of SGD.

    The table lists (largest d, block size) by kind of device; above its end the last entry holds.
    On CUDA they were measured on square matrices of 2048 rows and more, and below on the
    convolutions of PlainNet-110.
    """
    rows = _table()["cuda" if device.type == "cuda" else "cpu"]
    for largest, size in rows:
        if d <= largest:
            return size
    return rows[-1][1]


@cache
def _table() -> dict[str, list[list[int]]]:
    table: dict[str, list[list[int]]] = json.loads(
        files(__package__).joinpath("auto_table.json").read_text()
    )
    return table


def multiplies_out(
    weight: Weight,
    group: Mapping[str, Any],
    rank: int,
    device: torch.device,
    state: Mapping[str, Any],
) -> bool:
    """Whether factors of a gradient are multiplied out, and the weight takes a dense step.

    This holds for ranks above the break-even, where the dense step is the same exact step. The
    product for a half-precision weight would be rounded, so it stays in factors. With momentum this
    happens only under "auto", because a window of factors has a multiple of their rank; later steps
    keep the first choice.
    """
    (_, d, k), has_begun = weight.view.matrices, False
    if group.get("natural"):
        return False
    if group["momentum"] > 0:
        if group["block_size"] != "auto" or "factors_a" in state:
            return False
        rank *= 2 * group["factor_window"] - 1
        has_begun = "by_gradients" in state or has_moved(state)
    may = not (is_worth_it(rank, d, k, device) or weight.is_half)
    return has_begun or (may and choice_for(weight, group).size == "dense")


def has_moved(state: Mapping[str, Any]) -> bool:
    """Whether there is momentum of dense gradients; a first step that failed has left zeros.

    This waits for the device, so it cannot run while a CUDA graph is captured.
    """
    buffer: Tensor | None = state.get("momentum_buffer")
    return buffer is not None and (is_capturing() or bool(buffer.any()))


def explain(weight: Weight, group: dict[str, Any], by_factors: str | None) -> str:
    """A line about one weight.

    Args:
        weight: The weight.
        group: Its options.
        by_factors: The kind of its last step, if that step used factors.
    """
    n, d, k = weight.view.matrices
    shape = f"{d} x {k}" if n == 1 else f"{n} x {d} x {k}"
    line = f"{weight.name} ({shape} on {weight.p.device}): "
    if by_factors is not None:
        return f"{line}{by_factors}."
    if group.get("natural"):
        return f"{line}natural steps by factors."
    choice = choice_for(weight, group)
    blocks = isinstance(choice.size, int)
    how = f"blocks of {choice.size} rows" if blocks else f"exact steps ({choice.retraction})"
    return f"{line}{how}, {choice.why}."
