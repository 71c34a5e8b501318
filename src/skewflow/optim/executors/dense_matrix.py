"""The exact step of a weight that is one matrix on a CPU, with little around it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...geometry.precision import is_exact
from ...kernels.exact_exponential.cpu import exponential_step_on_cpu
from ...kernels.exact_polar.cpu import adapted_polar_step, polar_step_on_cpu
from ...kernels.row_moments.reference import row_moments
from ...kernels.update import Update
from ..weight import Weight, steps_taken


class Single:
    """Such a weight and its views, which are made once: at 64 rows they take as long as the step.

    Args:
        weight: The weight; its plan is made anew when it, or its momentum, is elsewhere.
        X: Its matrix (d, k), a view.
        M: Its momentum likewise, or None.
        state: Its state.
    """

    def __init__(self, weight: Weight, X: Tensor, M: Tensor | None, state: dict[str, Any]) -> None:
        self._weight, self._X, self._M, self._state = weight, X, M, state
        self._out = (_written_at_once(X), None if M is None else _written_at_once(M))

    def takes(self, update: Update, retraction: str) -> bool:
        """Whether it takes such steps; with second moments only a square matrix does."""
        if retraction not in ("exp", "polar") or update.nesterov:
            return False
        d, k = self._X.shape
        return update.beta2 is None or (retraction == "polar" and d == k and is_exact(self._X))

    def step(self, update: Update, retraction: str, time: Callable[[], int]) -> None:
        """Step it; `time` are the steps done before."""
        X, M, grad = self._X, self._M, self._weight.p.grad
        assert grad is not None
        G = self._weight.view.matrix(grad)
        G = G if G.dtype == X.dtype else G.to(X.dtype)
        G = -G if update.maximize else G
        moments = None
        if update.beta2 is not None:
            done = steps_taken(self._state, time())
            moments = row_moments(self._state["exp_avg_sq"], G[None], done, update)[0]
        D = G if M is None else torch.add(G, M, alpha=update.momentum, out=M)
        tangent: Tensor | None
        if moments is not None:
            Y, tangent = adapted_polar_step(X, D, update.lr, moments)
        elif retraction == "polar":
            Y, tangent = polar_step_on_cpu(X, D, update.lr, M is not None, self._out)
        else:
            out = self._out[1]
            Y, tangent = exponential_step_on_cpu(X, D, update.lr, tangent=M is not None, out=out)
        if Y is not X:
            X.copy_(Y)
        if M is not None and tangent is not M:
            assert tangent is not None
            M.copy_(tangent)


def _written_at_once(A: Tensor) -> Tensor | None:
    """The matrix if products write to its memory; otherwise None, and they would copy."""
    return A if A.is_contiguous() or A.mT.is_contiguous() else None


def single_of(weights: Sequence[Weight], states: Sequence[dict[str, Any]]) -> Single | None:
    """The weight as a single matrix; None where there are more, on another device, or copies."""
    weight, state = weights[0], states[0]
    alone = len(weights) == weight.num_matrices == 1
    if not alone or weight.is_half or weight.p.device.type != "cpu":
        return None
    stepped = [weight.p.detach()]
    stepped += [state["momentum_buffer"]] if "momentum_buffer" in state else []
    if any(t.is_inference() for t in stepped):  # which may not be written to, after the weight is
        return None
    views = [weight.view.matrix(t) for t in stepped]
    if any(view.data_ptr() != t.data_ptr() for view, t in zip(views, stepped, strict=True)):
        return None
    return Single(weight, views[0], views[1] if len(views) > 1 else None, state)
