"""Steps of weights by the factors of their gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import FactorError, NonFiniteGradientError
from ...geometry.precision import is_exact, users_precision
from ...kernels._runtime.graphs import is_capturing
from ...kernels.exact_step import exact_step
from ...kernels.natural_factors.dispatch import NaturalFactors
from ...kernels.natural_factors.reference import lengthening
from ...kernels.polish import polish_
from ...kernels.rotate_factored.dispatch import FactoredStep, is_decided_on_device, is_worth_it
from ...kernels.tangent import tangent_factors
from ...kernels.update import LARGEST_GRADIENT, Update
from ..auto import choice_for
from ..drift import is_due
from ..gradient import CHANGED, Factored
from ..options import exact_retraction
from ..weight import Weight
from .low_rank_momentum import with_momentum


class FactoredSteps:
    """Steps by factors, and what they report on CUDA only later."""

    def __init__(self) -> None:
        self._step, self._natural = FactoredStep(), NaturalFactors()
        self._flags: dict[Weight, tuple[Tensor, Tensor, Any]] = {}
        self._products: dict[Weight, tuple[Any, Tensor, Tensor]] = {}
        self.kinds: dict[Tensor, str] = {}
        """Of the weights whose last step was by factors: what it was, and why."""

    def as_gradients(
        self, ones: Sequence[Factored], states: Mapping[Tensor, dict[str, Any]]
    ) -> list[Factored]:
        """Those that are stepped as their gradient would be, which is formed.

        They are those above the break-even whose gradient would take the same exact step; that of
        a half weight would be rounded. With momentum "auto" decides so, where a window of factors
        has a multiple of their rank. And what has begun one way goes on.
        """
        found = []
        for one in ones:
            weight, group, rank = one.weight, one.group, one.A.shape[-1]
            (_, d, k), device = weight.view.matrices, one.A.device
            if group["natural"]:
                continue
            if group["momentum"] > 0:
                state = states.get(weight.p, {})
                if group["block_size"] != "auto" or "factors_a" in state:
                    continue
                rank *= 2 * group["factor_window"] - 1
                begun = "by_gradients" in state or _has_moved(state)
            else:
                begun = False
            may = not (weight.is_half or is_worth_it(rank, d, k, device))
            if begun or (may and choice_for(weight, group).size == "dense"):
                found.append(one)
        return found

    @torch.no_grad()
    def gradient(self, one: Factored) -> Tensor:
        """The gradient of the weight, always in the same memory, as CUDA graphs like it."""
        weight, A, B = one.weight, one.A, one.B
        kind = A.dtype, weight.p.dtype, A.device
        if weight not in self._products or self._products[weight][0] != kind:
            product = torch.empty(weight.view.matrices, dtype=A.dtype, device=A.device)
            grad = weight.view.restore(product)
            if grad.dtype != weight.p.dtype or grad.data_ptr() != product.data_ptr():
                grad = torch.empty_like(grad, dtype=weight.p.dtype)
            self._products[weight] = kind, product, grad
        _, product, grad = self._products[weight]
        with users_precision(A):
            torch.bmm(A, B.mT, out=product)
        if grad.data_ptr() != product.data_ptr():  # of another dtype, or a copy
            grad.copy_(weight.view.restore(product))
        return grad

    def complain(self) -> None:
        """Raise for factors of earlier steps that could not be used."""
        if not self._flags:
            return
        late = [weight.name for weight, (*_, seen) in self._flags.items() if any(seen.tolist())]
        if late:
            for bad, told, _ in self._flags.values():
                bad.zero_()
                told.zero_()
            raise NonFiniteGradientError(
                f"the factors of {', '.join(late)} must be finite, and kept by a layer with the "
                "same weight: at an earlier step they were not, and the step was not taken. Lower "
                "the learning rate, look for the overflow in the model, or for what writes to the "
                "weight between the forward pass and the step."
            )

    def check(self, ones: Sequence[Factored], states: Mapping[Tensor, dict[str, Any]]) -> None:
        """Raise for factors that cannot be used."""
        for one in ones:
            auto = one.group["block_size"] == "auto"
            if not auto and one.group["momentum"] > 0 and _has_moved(states.get(one.weight.p, {})):
                raise FactorError(
                    f"{one.weight.name} must be stepped either by gradients or by factors when "
                    f"there is momentum: its momentum is that of gradients. Make a new optimiser, "
                    "or set `momentum` to 0."
                )
            if is_decided_on_device(one.A):
                continue
            usable = _is_usable(one)
            if not usable and one.group["nonfinite"] == "raise":
                raise NonFiniteGradientError(
                    f"the factors of {one.weight.name}, and their product, must be finite and "
                    f"below {LARGEST_GRADIENT[one.A.dtype]:.0e}, where squares overflow: they are "
                    "not. Nothing was changed; lower the learning rate, or look for the overflow "
                    'in the model; nonfinite="skip" leaves such weights out.'
                )
            if usable and one.V is not None:
                X = one.weight.view(one.weight.p.detach())
                if not self._step.fits(X, one.B, one.V):
                    raise FactorError(CHANGED.format(one.weight.name))

    def step(
        self,
        one: Factored,
        update: Update,
        state: dict[str, Any],
        store: Callable[[Weight, Tensor], None],
    ) -> None:
        """Step one weight."""
        weight, skip = one.weight, one.group["nonfinite"] == "skip"
        late = is_decided_on_device(one.A)
        if skip and "skipped" not in state:
            state["skipped"] = torch.zeros((), dtype=torch.int64, device=weight.p.device)
        if skip and not late and not _is_usable(one):
            state["skipped"] += 1
            return
        X = weight.view(weight.points(state))
        A, B, V, AX = one.A, one.B, one.V, one.AX
        if update.maximize:
            A, AX = -A, None if AX is None else -AX
        finite: Tensor | None = None
        if update.momentum > 0:
            for key in ("momentum_buffer", "by_gradients"):  # zeros, as `check` has seen
                state.pop(key, None)
            known = (V, AX) if is_exact(X) and not late else ()  # late ones are not yet checked
            tangent, window = tangent_factors(X, A, B, *known), one.group["factor_window"]
            A, B, finite = with_momentum(state, (A, B), tangent, update, window)
            V = AX = None
        elif one.group["natural"]:
            A, B, finite = self._natural(state, X, A, B)
            V = AX = None
            if finite is not None and not late and not finite:
                raise RuntimeError(
                    f"the moment of {weight.name} must be positive definite and finite: it is not. "
                    "This weight was not stepped; make a new optimiser."
                )
        kind = "natural " if one.group["natural"] else ""
        why = f"since its gradient came in factors of rank {A.shape[-1]}"
        if is_worth_it(A.shape[-1], weight.d, X.shape[-1], X.device):
            self.kinds[weight.p] = f"{kind}factored steps, {why}"
            flag = self._flag(weight)[1] if late and not skip else None
            usable = self._step(X, A, B, update.lr, V, AX, flag)
            if skip:
                finite = usable.all() if finite is None else finite & usable.all()
        else:
            self.kinds[weight.p] = f"{kind}exact steps, {why}, too many for factored ones"
            with users_precision(X):
                G = A @ B.mT
            largest = torch.linalg.vector_norm(G, ord=float("inf"))
            fine = largest <= LARGEST_GRADIENT[G.dtype]  # which NaN is not
            finite = fine if finite is None else finite & fine
            retraction = exact_retraction(one.group, X.device)
            X.copy_(exact_step(X, torch.where(finite, G, 0), update.lr, retraction))
            if is_due(weight, state, retraction):
                polish_(X)
        store(weight, X)
        if late and skip:
            assert finite is not None
            state["skipped"] += ~finite
        elif late and finite is not None:
            bad, told, _ = self._flag(weight)
            told[1].copy_(bad.logical_or_(~finite), non_blocking=True)

    def _flag(self, weight: Weight) -> tuple[Tensor, Tensor, Any]:
        """What was wrong on the device; what the host knows, as a tensor and as numbers.

        The kernels tell the first of two numbers, what is found out here is the second.
        """
        if weight not in self._flags:
            bad = torch.zeros((), dtype=torch.bool, device=weight.p.device)
            told = torch.zeros(2, dtype=torch.int32, pin_memory=True)
            self._flags[weight] = bad, told, told.numpy()
        return self._flags[weight]


def _is_usable(one: Factored) -> bool:
    """Whether the entries of the factors and of their product are certain to have squares."""
    most = LARGEST_GRADIENT[one.A.dtype]
    a, b = (float(torch.linalg.vector_norm(F)) for F in (one.A, one.B))
    if one.group["natural"]:
        return all(x <= most for x in (a, b, a * b * lengthening(*one.B.shape[-2:])))
    if a <= most and b <= most and a * b <= most:  # no entry is above, and norms are found faster
        return True
    a, b = float(one.A.abs().max()), float(one.B.abs().max())
    return all(x <= most for x in (a, b, a * b * one.A.shape[-1]))  # which NaN is not


def _has_moved(state: dict[str, Any]) -> bool:
    """Whether there is momentum of gradients; a first step that failed has left zeros.

    It waits for the device, which the capture of a CUDA graph cannot.
    """
    buffer = state.get("momentum_buffer")
    return buffer is not None and (is_capturing() or bool(buffer.any()))
