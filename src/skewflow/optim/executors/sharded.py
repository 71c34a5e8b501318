"""Steps of sharded weights: sums over processes, the same blocks everywhere, local rotations."""

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from ..._typing import MatrixBlocks
from ..drift import FACTORED_EVERY, FACTORED_TOLERANCE, LARGEST_DRIFT, TOLERANCE
from ..gradient import Factors, Gradient
from ..sharded.guard import chunk, polish, polish_chunk, residual
from ..sharded.rounds import run
from ..sharded.steps import Now, Ready, steps_of
from .executor import Context, Executor, Member, Settings

if TYPE_CHECKING:  # torch's DTensor takes a second to import
    from ..sharded.weight import ShardedWeight


class Sharded(Executor):
    """All sharded weights of a group; the rounds of all groups go together."""

    sums = True

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        super().__init__(members, settings)
        self._rounds = settings.shared.rounds
        self._numbers: list[int] = []
        self._nows: list[Now] = []

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """One executor for the group."""
        gathered = member.choice.gathered and member.gradient is not None
        return True if member.weight.is_sharded and not gathered else None

    def prepare(self, context: Context) -> None:
        """Compute the parts of the first sums; nothing is sent yet."""
        if context.capturing:
            raise not_captured()
        self._nows = [self._now(member, context) for member in self.members]
        self._numbers = [self._rounds.add(steps_of(now, self.skips)) for now in self._nows]

    def undo(self) -> None:
        """Drop the prepared steps."""
        self._rounds.clear()
        self._nows.clear()

    def step(self, context: Context) -> None:
        """Take the steps, and check the drift at intervals."""
        for member, number, now in zip(self.members, self._numbers, self._nows, strict=True):
            ready: Ready | None = self._rounds.result(number)
            if ready is None:
                member.state["skipped"] += 1
            else:
                ready.write()
                member.weight.write_back(member.state, now.X, now.M)
        self._nows.clear()
        every, number = context.options["check_every"], context.drift.checks
        often = min(every, FACTORED_EVERY)
        due = [
            (member, tolerance)
            for member in self.members
            for interval, tolerance in [self._guarded(member, every, often)]
            if interval and not number % interval
        ]
        self._check(due, number)

    @staticmethod
    def _guarded(member: Member, every: int, often: int) -> tuple[int, float]:
        """Steps between checks of a weight, and its tolerance.

        Exact steps by gradients correct themselves.
        """
        dtype = member.weight.p.dtype
        if member.gradient is None:
            return often, FACTORED_TOLERANCE[dtype]
        return every * isinstance(member.choice.size, int), TOLERANCE[dtype]

    def blocks(self, member: Member) -> Sequence[MatrixBlocks]:
        """The generators inside of the blocks of a prepared step, once the first sums are there."""
        ready: Ready | None = self._rounds.found(self._numbers[self.members.index(member)])
        return () if ready is None else ready.blocks

    def explain(self, member: Member) -> str | None:
        """Say that its gradient came in factors."""
        if member.gradient is not None:
            return None
        return "exact steps, since its gradient came in factors; their products are summed"

    def stacks(self) -> Iterator[list[Member]]:
        """No member: this executor checks the drift itself."""
        yield from ()

    def _now(self, member: Member, context: Context) -> Now:
        weight, state = _sharded(member), member.state
        X, M = weight.matrices(state)
        gradient = context.gradients[member.index]
        G: Gradient = gradient if isinstance(gradient, Factors) else weight.local(gradient)
        squares, taken = state.get("exp_avg_sq"), 0
        if squares is not None:
            taken = int(context.clock.taken(state, weight.p.device))
        time = context.clock.time(weight.p.device)
        return Now(weight, member.choice, X, G, M, squares, context.update, time, taken)

    def _check(self, members: Sequence[tuple[Member, float]], number: int) -> None:
        """Polish the weights that have drifted by more than their tolerance.

        Where columns are split, this and the next steps polish some of them each, so that no step
        sends the matrix.
        """
        drifts = run([residual(_sharded(member), number) for member, _ in members])
        due = []
        for (member, tolerance), drift in zip(members, drifts, strict=True):
            weight, state = _sharded(member), member.state
            if drift <= tolerance or state["unpolished"]:
                continue
            if drift > LARGEST_DRIFT:  # written by other code
                weight.nearest()
            elif weight.placement.split == "columns":
                state["unpolished"] = weight.view.matrices[2]
            else:
                due.append(polish(weight))
            state["polishes"] += 1
        for member in self.members:
            weight, left = _sharded(member), member.state["unpolished"]
            if left and weight.placement.split == "columns":
                k = weight.view.matrices[2]
                due.append(polish_chunk(weight, k - left))
                member.state["unpolished"] = max(left - chunk(k), 0)
        run(due)


def not_captured() -> RuntimeError:
    """The error for a step of sharded weights inside a CUDA graph."""
    return RuntimeError(
        "steps of sharded weights cannot be captured in a CUDA graph: the host waits for other "
        "processes. Step outside of the graph."
    )


def _sharded(member: Member) -> "ShardedWeight":
    return cast("ShardedWeight", member.weight)
