"""The plan of a group: its executors, made once and kept while nothing moves."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels.update import Update
from .auto import choice_for
from .executors.blocks import Blocks
from .executors.dense_batch import DenseBatch
from .executors.executor import Executor, Member, Settings, Shared
from .executors.fused_launches import FusedLaunches
from .executors.gathered import Gathered
from .executors.low_rank import LowRank
from .executors.low_rank_momentum import LowRankMomentum
from .executors.natural import Natural
from .executors.sampled_blocks import SampledBlocks
from .executors.sharded import Sharded
from .gradient import Factors, Gradient, layout_of
from .weight import Weight

EXECUTORS = (
    Gathered,
    Sharded,
    Natural,
    LowRankMomentum,
    LowRank,
    FusedLaunches,
    DenseBatch,
    SampledBlocks,
    Blocks,
)
"""Every way of stepping. A weight takes the first one that has a key for it."""

SWITCHES = (
    "nesterov", "maximize", "block_size", "sampler", "retraction", "seed", "nonfinite", "natural",
    "foreach", "angle", "num_draws", "gather", "scale",
)  # fmt: skip
"""Options that a plan is made for; the others are numbers that a step takes."""

BUFFERS = ("momentum_buffer", "master", "exp_avg_sq", "skipped")
"""Tensors of the states whose addresses executors may keep."""


class Plan:
    """The executors of a group, for parameters, gradients and states that stay where they are.

    Args:
        group: The group.
        gradients: The gradient of each of its parameters, or None.
        weights: Its weights.
        states: The states of the weights.
        update: The numbers of a step with these options.
        shared: Objects of the optimiser that serve all steps.
    """

    def __init__(
        self,
        group: dict[str, Any],
        gradients: Sequence[Gradient | None],
        weights: Mapping[Tensor, Weight],
        states: Mapping[Tensor, dict[str, Any]],
        update: Update,
        shared: Shared,
    ) -> None:
        params = group["params"]
        self.options, self.update, self._group = dict(group), update, group
        self.members = []
        for index, (p, gradient) in enumerate(zip(params, gradients, strict=True)):
            if gradient is None:
                continue
            weight, state = weights[p], states[p]
            shared.clock.count(p.device)
            if group["nonfinite"] == "skip" and "skipped" not in state:
                state["skipped"] = torch.zeros((), dtype=torch.int64, device=p.device)
            layout = layout_of(gradient, weight)
            self.members.append(Member(index, weight, state, choice_for(weight, group), layout))
        self.executors = executors_of(self.members, Settings(self.options, update, shared))
        self._params = [id(p) for p in params]
        self._places = [*map(_place, params, gradients)]
        self._states = [(member.weight.p, member.state) for member in self.members]
        self._buffers = [
            (member.state, key, member.state[key])
            for member in self.members
            for key in BUFFERS
            if key in member.state
        ]

    def same_numbers(self, group: dict[str, Any]) -> bool:
        """Whether `update` still agrees with the options."""
        same = self.options["params"] is group["params"] and self.options == group
        return same and not isinstance(group["lr"], Tensor)

    def renumber(self, group: dict[str, Any], update: Update) -> None:
        """Continue with other numbers."""
        self.options, self.update = dict(group), update

    def fits(
        self,
        group: dict[str, Any],
        gradients: Sequence[Gradient | None],
        states: Mapping[Tensor, dict[str, Any]],
    ) -> bool:
        """Whether only numbers and the addresses of gradients have changed."""
        params = group["params"]
        if self._group is not group or [id(p) for p in params] != self._params:
            return False
        if self.options != group and _switches(self.options) != _switches(group):
            return False
        if [*map(_place, params, gradients)] != self._places:
            return False
        if any(states.get(p) is not state for p, state in self._states):
            return False
        return all(state.get(key) is tensor for state, key, tensor in self._buffers)

    def draws_otherwise(self, group: dict[str, Any]) -> bool:
        """Whether samplers and generators made for this plan no longer fit the group."""
        return any(self.options[key] != group[key] for key in ("sampler", "block_size", "seed"))

    def stacks(self) -> Iterator[list[Member]]:
        """The members whose drift is checked, in lists that are checked together."""
        for executor in self.executors:
            yield from executor.stacks()


def executors_of(members: Sequence[Member], settings: Settings) -> list[Executor]:
    """An executor for all members of equal key."""
    alike: dict[Any, list[Member]] = defaultdict(list)
    for member in members:
        for kind in EXECUTORS:
            key = kind.key(member, settings)
            if key is not None:
                alike[(kind, key)].append(member)
                break
    return [kind.make(several, settings) for (kind, _), several in alike.items()]


def _place(p: Tensor, gradient: Gradient | None) -> tuple[Any, ...] | None:
    """The facts about a parameter and its gradient that a plan relies on."""
    if gradient is None:
        return None
    if isinstance(gradient, Factors):
        return (p.data_ptr(), p.stride())
    strides = None if gradient.is_sparse else gradient.stride()
    return (p.data_ptr(), p.stride(), strides, gradient.dtype)


def _switches(group: dict[str, Any]) -> tuple[Any, ...]:
    return (group.get("momentum", 1) > 0, *[group.get(name) for name in SWITCHES])
