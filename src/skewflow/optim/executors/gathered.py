"""Steps of sharded weights that need whole matrices: every process gathers them and steps alike."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..gradient import layout_of, unusable_gradient
from ..initial_state import begin_samplers
from ..options import is_fused
from ..sharded.steps import refusals
from ..weight import Weight
from .executor import Context, Draws, Executor, Member, Settings
from .sampled_blocks import draws_of
from .sharded import not_captured

if TYPE_CHECKING:  # torch's DTensor takes a second to import
    from ..sharded.weight import ShardedWeight


class Gathered(Executor):
    """One sharded weight, stepped as a whole one by the executor of such a weight.

    The whole matrices of point, gradient and momentum live for one step.
    """

    sums = True

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        super().__init__(members, settings)
        (self._member,) = members
        self._weight = cast("ShardedWeight", self._member.weight)
        self._settings = settings
        self._samples = not is_fused(settings.options["sampler"])
        if self._samples:
            begin_samplers(self._member.state, settings.options, self._weight)
        self._rounds, self._number = settings.shared.rounds, 0
        self._twin: Member | None = None
        self.whole: tuple[Executor, Context] | None = None
        """The prepared step of the whole weight: its executor, and what that one is given."""

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """Each weight has an executor; steps by factors need no whole matrices."""
        gathered = member.choice.gathered and member.gradient is not None
        return id(member) if gathered else None

    def prepare(self, context: Context) -> None:
        """Gather the matrices; every process refuses or leaves out the same gradient."""
        from ...kernels._runtime.finite import is_usable  # numba, on use
        from ..plan import executors_of  # which imports this file

        if context.capturing:
            raise not_captured()
        weight, state = self._weight, dict(self._member.state)
        self._number = self._rounds.add(refusals(weight))
        gradient = weight.gathered(context.gradients[self._member.index])
        self.left_out = () if is_usable(gradient) else self.members
        if self.left_out:
            if not self.skips:
                raise unusable_gradient(weight, gradient)
            return
        if "momentum_buffer" in state:
            state["momentum_buffer"] = weight.gathered(state["momentum_buffer"])
        point = weight.gathered(weight.p.detach())
        twin = Weight(point, weight.name, weight.view, weight.stream, weight.present_until)
        choice = replace(self._member.choice, gathered=False)
        self._twin = Member(0, twin, state, choice, layout_of(gradient, twin))
        (inner,) = executors_of([self._twin], self._settings)
        self.whole = inner, replace(context, gradients=[gradient])
        inner.prepare(self.whole[1])

    def undo(self) -> None:
        """Undo the draws, and free the matrices."""
        if self.whole is not None:
            self.whole[0].undo()
        self._rounds.clear()
        self._twin = self.whole = None

    def step(self, context: Context) -> None:
        """Step the whole weight, check its drift at intervals, and keep the part that is here."""
        weight, state = self._weight, self._member.state
        self._rounds.result(self._number)
        if self._twin is None or self.whole is None:
            state["skipped"] += 1
            return
        (inner, given), twin = self.whole, self._twin
        inner.step(given)
        every = context.options["check_every"]
        if every and not context.drift.checks % every:
            context.drift.check_now([twin], context.options["seed"])
        for key, value in twin.state.items():
            if key == "momentum_buffer":
                weight.keep_part(state[key], value)
            else:
                state[key] = value
        weight.keep_part(weight.p.detach(), twin.weight.p)
        self._twin = self.whole = None

    def draws(self) -> Draws | None:
        """Those of its samplers."""
        return draws_of(self._member.state) if self._samples else None

    def stacks(self) -> Iterator[list[Member]]:
        """No member: this executor checks the drift itself."""
        yield from ()
