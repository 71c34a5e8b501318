"""Natural steps: the factors of a gradient are divided by their second moment."""

from collections.abc import Hashable

from torch import Tensor

from ...kernels.rotate_factored.dispatch import is_decided_on_device
from ..gradient import Factors
from .executor import Context, Member, Settings
from .low_rank import LowRank


class Natural(LowRank):
    """One weight whose factors are divided by the moment of all factors so far."""

    kind = "natural "

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """Each weight has an executor."""
        return LowRank.key(member, settings) if settings.options.get("natural") else None

    def direction(
        self, X: Tensor, given: Factors, context: Context
    ) -> tuple[Factors, Tensor | None]:
        """The natural factors."""
        A, B, finite = self._memory.natural(self._state, X, given.A, given.B)
        if finite is not None and not is_decided_on_device(A) and not finite:
            raise RuntimeError(
                f"the moment of {self._weight.name} must be positive definite and finite: it is "
                "not. This weight was not stepped; make a new optimiser."
            )
        return Factors(A, B), finite
