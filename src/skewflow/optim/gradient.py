"""Which weights are stepped by factors of their gradients: collected, and checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import FactorError
from ..geometry.retractions import HALVES
from .factored_gradient import FactoredGradient, factored, formed
from .weight import Weight

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
    found = []
    for group in groups:
        is_checked = False
        for p in group["params"]:
            weight, gradient = weights[p], factored(p)
            if p not in given and gradient is None:
                continue
            if not is_checked:
                check_options(group)
                is_checked = True
            weight.check_shape()
            _check_options(weight, group)
            if p in given and p.grad is not None:
                raise FactorError(
                    f"{weight.name} must have one source of its gradient: it has factors and "
                    f"{'a gradient' if formed(p) is not None else 'those of a captured layer'}. "
                    "Add them up yourself, or capture all layers that use it."
                )
            if gradient is None:
                _check_given(weight, given[p])
                found.append(_oriented(weight, group, *given[p]))
            else:
                _refuse_processes(weight)
                found.append(_joined(weight, group, gradient))
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
    if weight.view.layout is not None:
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


def _refuse_processes(weight: Weight) -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        if size > 1:
            raise FactorError(
                f"captured factors are not exchanged between processes: there are {size}, and the "
                f"copies of {weight.name} would part. Remove the capture, or gather the factors "
                "yourself and pass them to `step(factors=...)`."
            )


def _joined(weight: Weight, group: dict[str, Any], gradient: FactoredGradient) -> Factored:
    """The factors of all uses of a layer, and the products that it has computed.

    The output of the layer, before its bias, is X B for a tall weight, what it passes back is
    A^T X; for a wide one, whose transpose is X, the latter is X B. Of an older weight they are not.
    """
    left, right = gradient.factors()
    if not len(left):  # of an empty batch the gradient is zero, and momentum goes on
        return _oriented(weight, group, *(F.new_zeros(F.shape[1], 1) for F in (left, right)))
    left = gradient.scaled(left)
    exact = left.dtype == right.dtype == weight.p.dtype and weight.p.dtype not in HALVES
    if not exact:
        return _oriented(weight, group, left.mT, right.mT)
    A, B = left.mT[None], right.mT[None]
    output = passed = None
    if all(record.version == weight.p._version for record in gradient.records):
        output, passed = (
            _all([record.kept(side) for record in gradient.records])
            for side in ("output", "passed")
        )
    passed = None if passed is None else gradient.scaled(passed)
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
