"""Exact steps of one weight by the two factors of its gradient."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import NonFiniteGradientError
from ...geometry.precision import users_precision
from ...kernels.exact_step import exact_step
from ...kernels.natural_factors.dispatch import NaturalFactors
from ...kernels.polish import polish_
from ...kernels.rotate_factored.dispatch import FactoredStep, is_decided_on_device, is_worth_it
from ...kernels.turn_by_angle.exact import factors_by_angle
from ...kernels.update import LARGEST_GRADIENT
from ..drift import FACTORED_EVERY, FACTORED_TOLERANCE, accumulates_rounding, polish_is_due
from ..gradient import Factors
from ..weight import Weight
from .executor import Context, Executor, Member, Settings


class LowRankMemory:
    """State of factored steps that outlives a step: the kernels' memory, and CUDA's error flags."""

    def __init__(self) -> None:
        self.step, self.natural = FactoredStep(), NaturalFactors()
        self._flags: dict[Weight, tuple[Tensor, Tensor, Any]] = {}

    def flag(self, weight: Weight) -> tuple[Tensor, Tensor]:
        """The error flag on the device, and two numbers that the host reads.

        The kernels write the first number; the second is a copy of the flag.
        """
        if weight not in self._flags:
            bad = torch.zeros((), dtype=torch.bool, device=weight.p.device)
            seen = torch.zeros(2, dtype=torch.int32, pin_memory=True)
            self._flags[weight] = bad, seen, seen.numpy()
        bad, seen, _ = self._flags[weight]
        return bad, seen

    def complain(self) -> None:
        """Raise for factors of earlier steps that could not be used."""
        if not self._flags:
            return
        late = [weight.name for weight, (*_, fast) in self._flags.items() if any(fast.tolist())]
        if late:
            for bad, seen, _ in self._flags.values():
                bad.zero_()
                seen.zero_()
            raise NonFiniteGradientError(
                f"the factors of {', '.join(late)} must be finite, and kept by a layer with the "
                "same weight: at an earlier step they were not, and the step was not taken. Lower "
                "the learning rate, look for the overflow in the model, or for code that writes to "
                "the weight between the forward pass and the step."
            )


class LowRank(Executor):
    """One weight, stepped by the factors of its gradient.

    Subclasses step by other factors, those of `direction`.
    """

    kind = ""
    """Prefix of the step's name in the report."""

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        super().__init__(members, settings)
        (member,) = members
        self._weight, self._state, self._index = member.weight, member.state, member.index
        self._retraction, self._memory = member.choice.retraction, settings.shared.low_rank
        self._rounds = accumulates_rounding(member.weight, self._retraction)
        self._views = member.weight.views(member.state)
        self._copies = self._views is None or member.weight.has_master

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """Each weight has an executor."""
        return id(member) if member.gradient is None else None

    def complain(self) -> None:
        """Raise for factors of earlier steps that could not be used."""
        self._memory.complain()

    def prepare(self, context: Context) -> None:
        """Raise what was reported; the factors were checked as they were read."""
        self._memory.complain()
        self.left_out = () if context.gradients[self._index].usable else self.members

    def step(self, context: Context) -> None:
        """Step the weight, and check its drift at intervals."""
        given: Factors = context.gradients[self._index]
        if self.left_out:
            self._state["skipped"] += 1
        else:
            if context.update.maximize:
                given = given.negated()
            X, _ = self._views or self._weight.matrices(self._state)
            factors, finite = self.direction(X, given, context)
            if context.update.angle is not None:
                pair = factors_by_angle(X, factors.A, factors.B, context.update.angle)
                factors = Factors(*pair)
            self._turn(X, factors, finite, context)
            if self._copies:
                self._weight.write_back(self._state, X)
        if not context.capturing:
            self._check_drift(context)

    def stacks(self) -> Iterator[list[Member]]:
        """No member: this executor checks the drift itself, more often."""
        yield from ()

    def direction(
        self, X: Tensor, given: Factors, context: Context
    ) -> tuple[Factors, Tensor | None]:
        """The factors to step by; and whether they are finite, if only the device knows."""
        return given, None

    def _turn(self, X: Tensor, factors: Factors, finite: Tensor | None, context: Context) -> None:
        """Step the points X in place."""
        A, B, rank, lr = factors.A, factors.B, factors.rank, context.update.lr
        late, why = is_decided_on_device(A), f"since its gradient came in factors of rank {rank}"
        if is_worth_it(rank, X.shape[-2], X.shape[-1], X.device):
            self.explanation = f"{self.kind}factored steps, {why}"
            flag = self._memory.flag(self._weight)[1] if late and not self.skips else None
            usable = self._memory.step(X, A, B, lr, factors.V, factors.AX, flag)
            if self.skips:
                finite = usable.all() if finite is None else finite & usable.all()
        else:
            self.explanation = f"{self.kind}exact steps, {why}, too many for factored ones"
            with users_precision(X):
                G = A @ B.mT
            largest = torch.linalg.vector_norm(G, ord=float("inf"))
            fine = largest <= LARGEST_GRADIENT[G.dtype]  # false for NaN
            finite = fine if finite is None else finite & fine
            X.copy_(exact_step(X, torch.where(finite, G, 0), lr, self._retraction))
            if self._rounds and not context.capturing and polish_is_due(self._state):
                polish_(X)
        if not late or finite is None:
            return
        if self.skips:
            self._state["skipped"] += ~finite
        else:
            bad, seen = self._memory.flag(self._weight)
            seen[1].copy_(bad.logical_or_(~finite), non_blocking=True)

    def _check_drift(self, context: Context) -> None:
        """Check the drift by the count of the steps of this weight."""
        state, every = self._state, min(context.options["check_every"], FACTORED_EVERY)
        state["factored"] = state.get("factored", 0) + 1
        if every and not state["factored"] % every:
            context.drift.check(self.members, context.update.seed, FACTORED_TOLERANCE)
