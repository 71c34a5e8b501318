"""Momentum of steps by factors: factors of the last gradients' tangent parts, side by side."""

from collections.abc import Hashable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...errors import FactorError
from ...geometry.precision import is_exact
from ...kernels._runtime.graphs import is_capturing
from ...kernels.rotate_factored.dispatch import is_decided_on_device
from ...kernels.tangent import tangent_factors
from ...kernels.update import Update
from ..auto import has_moved
from ..gradient import Factors
from .executor import Context, Member, Settings
from .low_rank import LowRank


class LowRankMomentum(LowRank):
    """One weight, stepped by factors of its gradient and of those of the steps before."""

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """Each weight has an executor."""
        return LowRank.key(member, settings) if settings.update.momentum > 0 else None

    def prepare(self, context: Context) -> None:
        """Refuse a weight that has the momentum of dense gradients."""
        super().prepare(context)
        if context.options["block_size"] != "auto" and has_moved(self._state):
            raise FactorError(
                f"{self._weight.name} must be stepped either by gradients or by factors when "
                "there is momentum: its momentum is that of gradients. Make a new optimiser, "
                "or set `momentum` to 0."
            )

    def direction(
        self, X: Tensor, given: Factors, context: Context
    ) -> tuple[Factors, Tensor | None]:
        """The factors of the gradient and of the momentum."""
        for key in ("momentum_buffer", "by_gradients"):  # zeros, which `prepare` has checked
            self._state.pop(key, None)
        # Errors that CUDA reports late are not known yet.
        known = is_exact(X) and not is_decided_on_device(given.A)
        V, AX = (given.V, given.AX) if known else (None, None)
        tangent = tangent_factors(X, given.A, given.B, V, AX)
        window = context.options["factor_window"]
        pair = given.A, given.B
        A, B, finite = with_momentum(self._state, pair, tangent, context.update, window)
        return Factors(A, B), finite


def with_momentum(
    state: dict[str, Any],
    new: tuple[Tensor, Tensor],
    tangent: tuple[Tensor, Tensor],
    update: Update,
    window: int,
) -> tuple[Float[Tensor, "n d R"], Float[Tensor, "n k R"], Bool[Tensor, ""]]:
    r"""Factors of the direction $A_tB_t^\top + \sum_{0<s<w} \mu^s T_{t-s}$, or of Nesterov's.

    T is the tangent part of an old gradient at the point where it was measured. The state gets the
    new one, and forgets the oldest; it holds no more columns than its steps have. In a CUDA graph,
    which knows only one shape, all steps of the window must therefore be of one rank: on CUDA the
    window begins full, with zeros.

    Args:
        state: Of the weight.
        new: Factors of the gradient.
        tangent: Factors of its tangent part, from `tangent_factors`.
        update: The numbers of the step.
        window: The steps w that are added up, this one among them.

    Returns:
        Both factors, and whether the new ones are finite: if not, the direction is zero, and
        nothing is added to the state.
    """
    mu, rank = update.momentum, tangent[0].shape[-1]
    late = new[0].device.type == "cuda"
    before: list[int] = state.get("factor_ranks", [rank] * (window - 1) if late else [])
    ranks = [rank, *before][: window - 1]
    if is_capturing() and ranks != before:
        raise RuntimeError(
            "the factors of a step that is captured in a CUDA graph must have the rank of those "
            f"in the momentum: got {rank // 2} after {[r // 2 for r in before]}. Take "
            f"factor_window - 1 = {window - 1} such steps before the capture."
        )
    finite = torch.isfinite(tangent[0]).all() & torch.isfinite(tangent[1]).all()
    first, later = (1 + mu, mu * mu) if update.nesterov else (1.0, mu)
    direction = []
    for key, F, T, once, then, decay in (
        ("factors_a", new[0], tangent[0], first, later, mu),
        ("factors_b", new[1], tangent[1], 1.0, 1.0, 1.0),
    ):
        old: Tensor = state[key].to(F) if key in state else F.new_zeros(*F.shape[:2], sum(before))
        past = old[..., : sum(before[: window - 1])]
        direction.append(torch.where(finite, torch.cat([once * F, then * past], dim=-1), 0))
        moved = torch.cat([T, decay * past], dim=-1)
        stays = old if ranks == before else torch.cat([torch.zeros_like(T), past], dim=-1)
        kept = torch.where(finite, moved[..., : sum(ranks)], stays[..., : sum(ranks)])
        if key in state and old is state[key] and ranks == before:
            old.copy_(kept)  # a graph knows the memory by its address
        else:
            state[key] = kept
    state["factor_ranks"] = ranks
    return direction[0], direction[1], finite
