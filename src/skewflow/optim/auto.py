"""The choice behind "auto": exact steps where they are cheap, else blocks that cost little.

It depends on the shape and the kind of device alone, so that every run and every process chooses
alike, and a learning rate means the same in all of them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from ..samplers import Sampler
from .options import own_block_size
from .weight import Weight

MOST_OPERATIONS = {"cpu": 2e9, "cuda": 1e11}
"""Of an exact step: a square matrix of 630 rows on a CPU, of 2300 on CUDA. With an exact gradient
blocks make (s - 1) / (d - 1) of its progress."""


@cache
def _table() -> dict[str, list[list[int]]]:
    table: dict[str, list[list[int]]] = json.loads(
        files(__package__).joinpath("auto_table.json").read_text()
    )
    return table


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


@dataclass(frozen=True)
class Choice:
    """The block size of a weight, and the reason for it.

    Args:
        size: Rows of a block, or "dense" for exact steps.
        why: A clause that follows the size in `explain`.
    """

    size: int | str
    why: str


def choice_for(weight: Weight, group: Mapping[str, Any]) -> Choice:
    """The step of one weight under the options of its group."""
    size, sampler, d = group["block_size"], group["sampler"], weight.d
    why = "the size of its group"
    if isinstance(sampler, Sampler):
        size = own_block_size(sampler) or (2 if size == "auto" else size)
        why = f"drawn by {sampler!r}"
    elif size == "auto":
        return auto_choice(weight.view.matrices, weight.p.device, group)
    if isinstance(size, int) and size >= d:
        return Choice("dense", f"since it has no more than {size} rows")
    return Choice(size, why)


def auto_choice(
    matrices: tuple[int, int, int], device: torch.device, group: Mapping[str, Any]
) -> Choice:
    """What "auto" means for matrices (n, d, k) on a device.

    Samplers draw blocks, Cayley's exact step solves a system, and on CUDA a graph cannot capture
    that of FlowAdam: these have blocks, whatever an exact step would cost.
    """
    n, d, k = matrices
    size = auto_block_size(d, device)
    if size >= d:
        return Choice("dense", f"since it has no more than {size} rows")
    cheapest = "the largest size that costs at most twice SGD"
    most = MOST_OPERATIONS.get(device.type)
    blocks = group["sampler"] != "sweep" or group["retraction"] != "exp"
    if blocks or most is None or ("betas" in group and device.type == "cuda"):
        return Choice(size, cheapest)
    operations = 8.0 * n * d * k * k  # of four products
    if operations > most:
        return Choice(size, f"{cheapest}; an exact step takes {operations:.0e} operations")
    return Choice("dense", f"which take only {operations:.0e} operations")


def explain(weight: Weight, group: dict[str, Any], by_factors: str | None) -> str:
    """A line about one weight.

    Args:
        weight: The weight.
        group: Its options.
        by_factors: What its last step was, if that was by factors.
    """
    n, d, k = weight.view.matrices
    shape = f"{d} x {k}" if n == 1 else f"{n} x {d} x {k}"
    line = f"{weight.name} ({shape} on {weight.p.device}): "
    if by_factors is not None:
        return f"{line}{by_factors}."
    if group.get("natural"):
        return f"{line}natural steps by factors."
    choice = choice_for(weight, group)
    exact = choice.size == "dense"
    return f"{line}{'exact steps' if exact else f'blocks of {choice.size} rows'}, {choice.why}."
