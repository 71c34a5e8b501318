"""The exact step of a weight that is one matrix on a CPU, with little overhead."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ...geometry.precision import full_precision
from ...kernels.exact_exponential.cpu import exponential_step_on_cpu
from ...kernels.exact_polar.cpu import adapted_polar_step, polar_step_on_cpu
from ...kernels.polish import polish_
from ...kernels.row_moments.reference import row_moments
from ..drift import POLISH_EVERY, accumulates_rounding
from ..gradient import unusable_gradient
from .executor import Context, Executor, Member, Settings


class DenseMatrix(Executor):
    """One matrix and its cached views: at 64 rows making them takes as long as the step."""

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        from ...kernels._runtime.finite import is_usable  # numba, on use

        super().__init__(members, settings)
        (member,) = members
        self._weight, self._state, self._index = member.weight, member.state, member.index
        self._retraction = member.choice.retraction
        views, layout = member.weight.views(member.state), member.gradient
        assert views is not None and layout is not None and layout.strided is not None
        X, M = views[0][0], None if views[1] is None else views[1][0]
        self._X, self._M = X, M
        shape, strides = layout.strided
        self._layout = shape[1:], strides[1:]
        self._out = _written_at_once(X), None if M is None else _written_at_once(M)
        self._polishes = accumulates_rounding(member.weight, self._retraction)
        self._is_usable = is_usable

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """Whether this executor can step the weight, provided that no other has its shape."""
        weight, layout, retraction = member.weight, member.gradient, member.choice.retraction
        n, d, k = weight.view.matrices
        if n > 1 or weight.has_master or weight.p.device.type != "cpu" or layout is None:
            return None
        if settings.update.angle is not None:
            return None
        if settings.update.nesterov or retraction == "cayley" or layout.strided is None:
            return None
        if settings.update.beta2 is not None and (retraction != "polar" or d != k):
            return None
        return None if weight.views(member.state) is None else id(member)

    def prepare(self, context: Context) -> None:
        """Check the gradient."""
        grad = context.gradients[self._index]
        self.left_out = () if self._is_usable(grad, by_torch=True) else self.members
        if self.left_out and not self.skips:
            raise unusable_gradient(self._weight, grad)

    def step(self, context: Context) -> None:
        """Step the matrix."""
        state, update, X, M = self._state, context.update, self._X, self._M
        if self.left_out:
            state["skipped"] += 1
            return
        G = context.gradients[self._index].as_strided(*self._layout)
        G = G if G.dtype == X.dtype else G.to(X.dtype)
        G = -G if update.maximize else G
        moments = None
        if update.beta2 is not None:
            taken = context.clock.taken(state, X.device)
            moments = row_moments(state["exp_avg_sq"], G[None], taken, update)[0]
        D = G if M is None else torch.add(G, M, alpha=update.momentum, out=M)
        tangent: Tensor | None
        if moments is not None:
            with full_precision():
                Y, tangent = adapted_polar_step(X, D, update.lr, moments)
        elif self._retraction == "polar":
            Y, tangent = polar_step_on_cpu(X, D, update.lr, M is not None, self._out)
        else:
            out = self._out[1]
            Y, tangent = exponential_step_on_cpu(X, D, update.lr, tangent=M is not None, out=out)
        if Y is not X:
            X.copy_(Y)
        if M is not None and tangent is not M:
            assert tangent is not None
            M.copy_(tangent)
        if self._polishes and not context.capturing:
            state["turns"] = state.get("turns", 0) + 1
            if state["turns"] % POLISH_EVERY == 0:
                polish_(X[None])


def _written_at_once(A: Tensor) -> Tensor | None:
    """The matrix if products can write to its memory; None if they would copy it."""
    return A if A.is_contiguous() or A.mT.is_contiguous() else None
