"""Which step a sharded weight gets: the one that its placement makes cheap."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.distributed.tensor import DTensor

from ..auto import (
    Choice,
    auto_block_size,
    auto_choice,
    block_retraction,
    exact_retraction,
    whole_choice,
)
from ..options import is_fused
from .weight import ShardedWeight

LINE = "fully_shard(..., shard_placement_fn=skewflow.distributed.shard_placement(model{}))"
"""Advice on sharding for blocks of rows; more arguments give that for other steps."""


def sharded_choice(weight: ShardedWeight, group: Mapping[str, Any]) -> Choice:
    """The step of one sharded weight under the options of its group.

    Raises:
        ValueError: If its placement does not allow that step, and the group does not gather.
    """
    if group.get("natural"):
        raise ValueError(
            f"{weight.name} is sharded, and NaturalSGD steps whole weights only. Use another "
            "optimiser, or leave it out of the sharding (`fully_shard` takes `ignored_params`)."
        )
    found = _in_parts(weight, group)
    if isinstance(found, Choice):
        return found
    if not group["gather"]:
        raise ValueError(f"{found} gather=True sends the whole matrix to every process.")
    choice = whole_choice(weight, group)
    return replace(choice, why=f"{choice.why}; the whole matrix is gathered", gathered=True)


def _in_parts(weight: ShardedWeight, group: Mapping[str, Any]) -> Choice | str:
    """The step that sends sums only, or why there is none."""
    size, split, d = group["block_size"], weight.placement.split, weight.d
    if split == "both":
        return (
            f"{_what(weight)} splits both rows and columns, so that no step is cheap. Shard it "
            f"over one of them: {LINE.format('')}."
        )
    if not is_fused(group["sampler"]):
        return (
            f"{weight.name} is sharded, and its blocks must be drawn without the generator: got "
            f'sampler={group["sampler"]!r}. Use "sweep" or "uniform".'
        )
    if group.get("num_draws", 1) > 1:
        return (
            f"{weight.name} is sharded, and sharded steps have one draw: got "
            f"num_draws={group['num_draws']}. Leave `num_draws` out, or take larger blocks."
        )
    if split == "columns":
        return _blocks(weight, group)
    retraction = exact_retraction(group)
    if split == "nothing":
        if size == "auto":
            return auto_choice(weight.view.matrices, weight.p.device, group)
        exact = not isinstance(size, int) or size >= d
        why = "the size of its group"
        return Choice("dense", retraction, why) if exact else Choice(size, retraction, why)
    if isinstance(size, int) and size < d:
        return (
            f"{_what(weight)} splits rows, and blocks of {size} rows sum over columns. Leave "
            'block_size out or use "dense" (exact steps sum over rows), or shard the columns: '
            f"{LINE.format('')}."
        )
    if retraction == "cayley":
        return (
            f"{_what(weight)} splits rows, and Cayley's exact step solves a system with all of "
            'them. Use retraction="exp" or "polar".'
        )
    return Choice("dense", retraction, "as its rows are split, by sums of k x k numbers")


def _blocks(weight: ShardedWeight, group: Mapping[str, Any]) -> Choice | str:
    """Blocks of rows; a matrix with no more than s rows is one block, so its step is exact."""
    size, d = group["block_size"], weight.d
    if size == "dense":
        return (
            f"{_what(weight)} splits columns, and exact steps sum over rows. Use a block size or "
            '"auto", or shard the rows: ' + LINE.format(', steps="exact"') + "."
        )
    why = "the size of its group"
    if size == "auto":
        size, why = auto_block_size(d, weight.p.device), "by sums of d (s - 1) / 2 numbers"
    side = "of its transpose, whose" if weight.placement.turned else "as its"
    return Choice(min(size, d), block_retraction(group), f"{side} columns are split, {why}")


def _what(weight: ShardedWeight) -> str:
    _, d, k = weight.view.matrices
    assert isinstance(weight.p, DTensor)
    return f"{weight.name} has matrices of {d} x {k}, and its placement {weight.p.placements}"
