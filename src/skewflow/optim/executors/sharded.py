"""Steps of sharded weights: sums over processes, the same blocks everywhere, local rotations."""

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from torch import Tensor

from ..._typing import MatrixBlocks
from ..drift import LARGEST_DRIFT, TOLERANCE
from ..sharded.guard import polish, residual
from ..sharded.rounds import run
from ..sharded.steps import Now, Ready, steps_of
from .executor import Context, Executor, Member, Settings

if TYPE_CHECKING:  # torch's DTensor takes a second to import
    from ..sharded.weight import ShardedWeight


class Sharded(Executor):
    """All sharded weights of a group; the rounds of all groups go together."""

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        super().__init__(members, settings)
        self._rounds = settings.shared.rounds
        self._numbers: list[int] = []

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """One executor for the group."""
        return True if member.weight.is_sharded and not member.choice.gathered else None

    def prepare(self, context: Context) -> None:
        """Compute the parts of the first sums; nothing is sent yet."""
        if context.capturing:
            raise not_captured()
        self._numbers = [
            self._rounds.add(steps_of(self._now(member, context), self.skips))
            for member in self.members
        ]

    def undo(self) -> None:
        """Drop the prepared steps."""
        self._rounds.clear()

    def step(self, context: Context) -> None:
        """Take the steps, and check the drift at intervals."""
        for member, number in zip(self.members, self._numbers, strict=True):
            ready: Ready | None = self._rounds.result(number)
            if ready is None:
                member.state["skipped"] += 1
            else:
                ready.write()
        every = context.options["check_every"]
        if every and not context.drift.checks % every:
            self._check(context.drift.checks)

    def blocks(self, member: Member) -> Sequence[MatrixBlocks]:
        """The generators inside of the blocks of a prepared step, once the first sums are there."""
        ready: Ready | None = self._rounds.found(self._numbers[self.members.index(member)])
        return () if ready is None else ready.blocks

    def stacks(self) -> Iterator[list[Member]]:
        """No member: this executor checks the drift itself."""
        yield from ()

    def _now(self, member: Member, context: Context) -> Now:
        weight, state = _sharded(member), member.state
        X, M = weight.matrices(state)
        G: Tensor = weight.local(context.gradients[member.index])
        squares, taken = state.get("exp_avg_sq"), 0
        if squares is not None:
            taken = int(context.clock.taken(state, weight.p.device))
        time = context.clock.time(weight.p.device)
        return Now(weight, member.choice, X, G, M, squares, context.update, time, taken)

    def _check(self, number: int) -> None:
        """Polish the weights stepped by blocks that have drifted."""
        checked = [m for m in self.members if isinstance(m.choice.size, int)]
        drifts = run([residual(_sharded(m), number) for m in checked])
        due = []
        for member, drift in zip(checked, drifts, strict=True):
            if drift <= TOLERANCE[member.weight.p.dtype]:
                continue
            if drift > LARGEST_DRIFT:  # written by other code
                member.weight.nearest()
            else:
                due.append(_sharded(member))
            member.state["polishes"] = member.state.get("polishes", 0) + 1
        run([polish(weight) for weight in due])


def not_captured() -> RuntimeError:
    """The error for a step of sharded weights inside a CUDA graph."""
    return RuntimeError(
        "steps of sharded weights cannot be captured in a CUDA graph: the host waits for other "
        "processes. Step outside of the graph."
    )


def _sharded(member: Member) -> "ShardedWeight":
    return cast("ShardedWeight", member.weight)
