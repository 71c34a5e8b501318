"""The interface of all ways of stepping, and the context of a step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ...kernels._runtime.graphs import Graphs
from ...kernels.update import Update
from ...tournaments.edge_weights import EdgeWeights
from ...tournaments.tournament import Tournament
from ..auto import Choice
from ..clock import Clock
from ..gradient import Layout
from ..weight import Weight

if TYPE_CHECKING:
    from ..drift import Drift
    from ..sharded.rounds import Rounds
    from .low_rank import LowRankMemory

Draws = Callable[[int, EdgeWeights], Tournament]
"""The next draw of a sampler for matrix number b of a weight."""

STACKED = 1 << 20
"""Parameters of up to this many elements are stacked, and stepped and checked together. For larger
ones the copy costs more than the launches that it saves."""


@dataclass(eq=False, slots=True)
class Member:
    """A weight of a group, and the facts of its steps that hold while nothing moves.

    Args:
        index: Its place in the group.
        weight: The weight.
        state: Its state.
        choice: Its block size and its retraction.
        gradient: How its dense gradients lie in memory; None for gradients in factors.
    """

    index: int
    weight: Weight
    state: dict[str, Any]
    choice: Choice
    gradient: Layout | None


@dataclass(slots=True)
class Shared:
    """Objects that live as long as an optimiser and serve all of its steps.

    Args:
        clock: Counts the steps.
        drift: Checks the weights for drift.
        low_rank: Memory of steps by factors.
        graphs: Makes the CUDA graphs of a device.
        rounds: Sums over processes that the steps of sharded weights wait for.
    """

    clock: Clock
    drift: "Drift"
    low_rank: "LowRankMemory"
    graphs: Callable[[torch.device], Graphs]
    rounds: "Rounds"


@dataclass(slots=True)
class Settings:
    """The settings for which the executors of a group are made.

    Args:
        options: The group's options.
        update: Numbers and switches of a step with these options.
        shared: Objects of the optimiser that serve all steps.
    """

    options: dict[str, Any]
    update: Update
    shared: Shared

    @property
    def skips(self) -> bool:
        """Whether weights whose gradient is not finite are skipped instead of raising."""
        return bool(self.options["nonfinite"] == "skip")

    def apart(self, member: Member) -> int | None:
        """The key of a weight with `foreach=False`, which is stepped by itself; None for others."""
        return id(member) if self.options["foreach"] is False else None


@dataclass(slots=True)
class Context:
    """One step of one group.

    Args:
        options: The group's options.
        update: The numbers of the step.
        gradients: The gradient of each parameter of the group: a tensor, factors, or None.
        clock: Counts the steps.
        drift: Checks the weights for drift.
        capturing: The step is being captured in a CUDA graph.
    """

    options: dict[str, Any]
    update: Update
    gradients: Sequence[Any]
    clock: Clock
    drift: "Drift"
    capturing: bool


class Executor(ABC):
    """A way of stepping, for some weights of a group.

    A plan makes one executor for all weights of equal `key`, and keeps it while nothing moves. A
    step calls `prepare` of all executors, and then `step` of all.

    Args:
        members: The weights.
        settings: The settings for which the executor is made.
    """

    sums: ClassVar[bool] = False
    """Whether its steps need sums over processes."""

    explanation: str | None = None
    """Say how the last step of all members was taken and why, if the group's options do not."""

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        self.members, self.skips = list(members), settings.skips
        self.left_out: Collection[Member] = ()
        """Members that this step leaves out, since their gradient is not finite."""

    @staticmethod
    @abstractmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """The key that weights of one executor have in common; None if it cannot take a weight."""

    @classmethod
    def make(cls, members: Sequence[Member], settings: Settings) -> "Executor":
        """The executor of members of equal key."""
        return cls(members, settings)

    @abstractmethod
    def prepare(self, context: Context) -> None:
        """Do everything that can fail, before any weight moves.

        It raises what a device has reported about earlier steps, checks gradients, and draws
        blocks.
        """

    @abstractmethod
    def step(self, context: Context) -> None:
        """Step all members but those left out."""

    def undo(self) -> None:  # noqa: B027
        """Undo the draws of `prepare`, because the step is not taken."""

    def explain(self, member: Member) -> str | None:
        """Say the same of one member."""
        return self.explanation

    def draws(self) -> Draws | None:
        """A preview of the draws of the next steps, if a sampler draws; nothing is changed."""
        return None

    def complain(self) -> None:  # noqa: B027
        """Raise for gradients of earlier steps that a device has found not to be finite."""

    def stacks(self) -> Iterator[list[Member]]:
        """The members whose drift is checked at every check, in lists that are checked together."""
        if self.members[0].weight.p.numel() <= STACKED:
            yield self.members
        else:
            yield from ([member] for member in self.members)
