"""Random blocks of one weight: compiled loops on a CPU, the reference elsewhere."""

from collections.abc import Hashable, Sequence

from ...kernels.block_step import stepper
from ...kernels.row_moments.reference import row_moments
from ..gradient import unusable_gradient
from .executor import Context, Executor, Member, Settings


class Blocks(Executor):
    """One weight, in blocks that the kernel draws.

    It keeps the views of the weight and its momentum as matrices: for a small weight making them
    takes as long as the step.
    """

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        from ...kernels._runtime.finite import is_usable  # numba, on use

        super().__init__(members, settings)
        (member,) = members
        self._weight, self._state, self._index = member.weight, member.state, member.index
        assert member.gradient is not None and isinstance(member.choice.size, int)
        self._size, self._layout = member.choice.size, member.gradient.strided
        self._device = member.weight.p.device
        self._views = member.weight.views(member.state)
        self._copies = self._views is None or member.weight.has_master
        self._given, self._update = (
            settings.update,
            settings.update.with_stream(member.weight.stream),
        )
        self._is_usable = is_usable
        self._step = stepper(self._device, self._size, settings.update)

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """Each weight has an executor."""
        return None if member.gradient is None or member.choice.size == "dense" else id(member)

    def prepare(self, context: Context) -> None:
        """Check the gradient."""
        grad = context.gradients[self._index]
        self.left_out = () if self._is_usable(grad) else self.members
        if self.left_out and not self.skips:
            raise unusable_gradient(self._weight, grad)

    def step(self, context: Context) -> None:
        """Step the weight."""
        weight, state, grad = self._weight, self._state, context.gradients[self._index]
        if self.left_out:
            state["skipped"] += 1
            return
        if context.update is not self._given:
            self._given, self._update = context.update, context.update.with_stream(weight.stream)
        X, M = self._views or weight.matrices(state)
        G = weight.view(grad) if self._layout is None else grad.as_strided(*self._layout)
        update, moments = self._update, None
        if update.beta2 is not None:
            taken = context.clock.taken(state, self._device)
            moments = row_moments(state["exp_avg_sq"], G, taken, update)
        self._step(X, G, M, context.clock.time(self._device), update, moments=moments)
        if self._copies:
            weight.write_back(state, X, M)
