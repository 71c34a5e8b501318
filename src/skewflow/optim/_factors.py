"""Weights that are stepped by factors of their gradients: collected, checked, stepped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import FactorError, NonFiniteGradientError
from ..geometry.precision import is_exact, users_precision
from ..geometry.retractions import HALVES
from ..kernels.update import LARGEST_GRADIENT, Update
from ._capture import Record, is_anything_recorded, recorded
from ._capturing import is_capturing
from ._dense import dense_step
from ._drift import bring_back_, is_due
from ._factored import FactoredStep, is_decided_on_device, is_worth_it
from ._options import exact_retraction
from ._weights import Weight
from ._window import tangent_factors, with_momentum

Factors = Mapping[Tensor, tuple[Tensor, Tensor]]
"""For each weight the two factors of its gradient, A B^T."""


CHANGED = (
    "{} must not change between the forward pass and the step: somebody wrote to it, so the "
    "factors its layer kept are those of another weight. Call `zero_grad()`, and do both passes "
    "again."
)


@dataclass(eq=False)
class Factored:
    """One weight and the factors of its gradient, seen as the gradient of its matrices.

    Args:
        weight: The weight.
        group: Its options.
        A: Left factors (n, d, r).
        B: Right factors (n, k, r).
        V: The points times B (n, d, r), where a layer has computed them.
        AX: The transposed A times the points (n, r, k), likewise.
    """

    weight: Weight
    group: dict[str, Any]
    A: Tensor
    B: Tensor
    V: Tensor | None = None
    AX: Tensor | None = None


def gather(
    groups: Sequence[dict[str, Any]],
    weights: Mapping[Tensor, Weight],
    given: Factors | None,
    check_options: Callable[[dict[str, Any]], None],
) -> list[Factored]:
    """The weights that take a factored step: those given, and those whose layers kept factors."""
    given = given or {}
    strangers = [p for p in given if p not in weights]
    if strangers:
        shape = tuple(getattr(strangers[0], "shape", ()))
        raise FactorError(
            "the keys of `factors` must be parameters of this optimiser: got a "
            f"{type(strangers[0]).__name__} of shape {shape} that it does not have."
        )
    found, any_recorded = [], is_anything_recorded()
    for group in groups:
        is_checked = False
        for p in group["params"]:
            weight, records = weights[p], recorded(p) if any_recorded else []
            if p not in given and not records:
                continue
            if not is_checked:
                check_options(group)
                is_checked = True
            weight.check_shape()
            _check_options(weight, group)
            if records:
                _refuse_processes(weight)  # first: DistributedDataParallel makes gradients of zeros
            if p.grad is not None or (p in given and records):
                raise FactorError(
                    f"{weight.name} must have one source of its gradient: it has factors and "
                    f"{'a gradient' if p.grad is not None else 'those of a captured layer'}. "
                    "Add them up yourself, or capture all layers that use it."
                )
            if p in given:
                _check_given(weight, given[p])
                found.append(_oriented(weight, group, *given[p]))
            else:
                _check_records(weight, records)
                found.append(_joined(weight, group, records))
    return found


def _check_options(weight: Weight, group: dict[str, Any]) -> None:
    size, retraction = group["block_size"], group["retraction"]
    if "betas" in group:
        raise FactorError(
            f"factors need FlowSGD: got some for {weight.name}. FlowAdam divides the planes by "
            "second moments, which leaves nothing of low rank. Give it the gradient."
        )
    if isinstance(size, int) or retraction != "exp":
        raise FactorError(
            f"a factored step is the exact exponential: the group of {weight.name} has "
            f'block_size={size!r} and retraction={retraction!r}. Use block_size="dense" (or '
            '"auto") and retraction="exp", or give it the gradient.'
        )
    if len(weight.view.shape) > 3:
        raise FactorError(
            f"factors need a matrix or a batch of matrices: {weight.name} has the shape "
            f"{weight.view.shape}. Give it the gradient."
        )


def _check_given(weight: Weight, pair: tuple[Tensor, Tensor]) -> None:
    whole = isinstance(pair, tuple | list) and [isinstance(F, Tensor) for F in pair] == [True, True]
    if not whole:
        raise FactorError(
            f"the factors of {weight.name} must be a pair of tensors (A, B) for its gradient "
            f"A B^T: got a {type(pair).__name__}."
        )
    (A, B), (*batch, rows, columns) = pair, weight.view.shape
    r = A.shape[-1] if A.ndim else 0
    if tuple(A.shape) != (*batch, rows, r) or tuple(B.shape) != (*batch, columns, r) or r < 1:
        raise FactorError(
            f"the factors of {weight.name}, of shape {weight.view.shape}, must have the shapes "
            f"{(*batch, rows, 'r')} and {(*batch, columns, 'r')} with one r >= 1: got "
            f"{tuple(A.shape)} and {tuple(B.shape)}. Its gradient is A B^T."
        )
    for F in (A, B):
        dense = F.layout == torch.strided
        if not (F.is_floating_point() and dense and F.device == weight.p.device):
            raise FactorError(
                f"the factors of {weight.name} must be dense tensors of real floating-point "
                f"numbers on {weight.p.device}: got {F.dtype}, {F.layout}, on {F.device}."
            )


def _check_records(weight: Weight, records: Sequence[Record]) -> None:
    if any(record.version != weight.p._version for record in records):
        raise FactorError(CHANGED.format(weight.name))
    if any(record.kept(side) is None for record in records for side in ("left", "right")):
        raise FactorError(
            f"the inputs of the layer of {weight.name}, and the gradients of its outputs, must not "
            "change between the backward pass and the step, since they are the factors: somebody "
            "wrote to them. Step first, or give the layer a copy."
        )


def _refuse_processes(weight: Weight) -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        if size > 1:
            raise FactorError(
                f"captured factors are not exchanged between processes: there are {size}, and the "
                f"copies of {weight.name} would part. Remove the capture, or gather the factors "
                "yourself and pass them to `step(factors=...)`."
            )


def _joined(weight: Weight, group: dict[str, Any], records: Sequence[Record]) -> Factored:
    """The factors of all uses of a layer, and the products that it has computed.

    The output of the layer, before its bias, is X B for a tall weight, what it passes back is
    A^T X; for a wide one, whose transpose is X, the latter is X B.
    """
    left, right = (_all([r.kept(side) for r in records]) for side in ("left", "right"))
    assert left is not None and right is not None
    if not len(left):  # of an empty batch the gradient is zero, and momentum goes on
        return _oriented(weight, group, *(F.new_zeros(F.shape[1], 1) for F in (left, right)))
    exact = left.dtype == right.dtype == weight.p.dtype and weight.p.dtype not in HALVES
    if not exact:
        return _oriented(weight, group, left.mT, right.mT)
    A, B = left.mT[None], right.mT[None]
    output, passed = (_all([r.kept(side) for r in records]) for side in ("output", "passed"))
    if weight.view.wide:
        return Factored(weight, group, B, A, None if passed is None else passed.mT[None])
    if output is None:
        return Factored(weight, group, A, B)
    AX = None if passed is None else passed[None]
    return Factored(weight, group, A, B, output.mT[None], AX)


def _all(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The rows of all parts; None where one is missing."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return known[0] if len(known) == 1 else torch.cat(known)


def _oriented(weight: Weight, group: dict[str, Any], A: Tensor, B: Tensor) -> Factored:
    """The factors of the matrices that the weight is seen as, in the precision of the step."""
    A, B = A.detach(), B.detach()
    if A.ndim == 2:
        A, B = A[None], B[None]
    dtype = torch.float64 if weight.p.dtype == torch.float64 else torch.float32
    if not A.dtype == B.dtype == dtype:
        A, B = A.to(dtype), B.to(dtype)
    return Factored(weight, group, *((B, A) if weight.view.wide else (A, B)))


class FactoredSteps:
    """Steps by factors, and what they report on CUDA only later."""

    def __init__(self) -> None:
        self._step = FactoredStep()
        self._flags: dict[Weight, tuple[Tensor, Tensor, Any]] = {}
        self._products: dict[Weight, tuple[Any, Tensor, Tensor]] = {}
        self.begun: set[Weight] = set()
        """Weights that have a momentum of gradients."""
        self.kinds: dict[Tensor, str] = {}
        """Of the weights whose last step was by factors: what it was, and why."""

    def as_gradients(
        self,
        ones: Sequence[Factored],
        states: Mapping[Tensor, dict[str, Any]],
        size_of: Callable[[dict[str, Any], Weight], int | str],
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
            if group["momentum"] > 0:
                state = states.get(weight.p, {})
                if group["block_size"] != "auto" or "factors_a" in state:
                    continue
                rank *= 2 * group["factor_window"] - 1
                begun = self._has_begun(weight, state)
            else:
                begun = False
            may = not (weight.is_half or is_worth_it(rank, d, k, device))
            if begun or (may and size_of(group, weight) == "dense"):
                found.append(one)
        return found

    def _has_begun(self, weight: Weight, state: dict[str, Any]) -> bool:
        """Whether its momentum is that of gradients, which a step that failed has not begun."""
        if "momentum_buffer" not in state:
            self.begun.discard(weight)
        elif weight not in self.begun and _has_moved(state):
            self.begun.add(weight)
        return weight in self.begun

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
            state.pop("momentum_buffer", None)  # of zeros, as `check` has seen
            known = (V, AX) if is_exact(X) and not late else ()  # late ones are not yet checked
            tangent, window = tangent_factors(X, A, B, *known), one.group["factor_window"]
            A, B, finite = with_momentum(state, (A, B), tangent, update, window)
            V = AX = None
        why = f"since its gradient came in factors of rank {A.shape[-1]}"
        if is_worth_it(A.shape[-1], weight.d, X.shape[-1], X.device):
            self.kinds[weight.p] = f"factored steps, {why}"
            flag = self._flag(weight)[1] if late and not skip else None
            usable = self._step(X, A, B, update.lr, V, AX, flag)
            if skip:
                finite = usable.all() if finite is None else finite & usable.all()
        else:
            self.kinds[weight.p] = f"exact steps, {why}, too many for factored ones"
            with users_precision(X):
                G = A @ B.mT
            largest = torch.linalg.vector_norm(G, ord=float("inf"))
            fine = largest <= LARGEST_GRADIENT[G.dtype]  # which NaN is not
            finite = fine if finite is None else finite & fine
            retraction = exact_retraction(one.group, X.device)
            X.copy_(dense_step(X, torch.where(finite, G, 0), update.lr, retraction))
            if is_due(weight, state, retraction):
                bring_back_(X)
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
