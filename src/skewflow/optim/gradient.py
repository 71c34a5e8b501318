"""Gradients as values, dense tensors or two factors of low rank: how they are read and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from ..errors import FactorError, NonFiniteGradientError
from ..geometry.precision import users_precision
from ..kernels.natural_factors.reference import lengthening
from ..kernels.rotate_factored.dispatch import FactoredStep, is_decided_on_device
from ..kernels.update import LARGEST_GRADIENT
from .auto import multiplies_out
from .factored_gradient import FactoredGradient
from .weight import Weight

if TYPE_CHECKING:  # torch's DTensor takes a second to import
    from .sharded.weight import ShardedWeight

GivenFactors: TypeAlias = Mapping[Tensor, tuple[Tensor, Tensor]]
"""For each parameter the two factors of its gradient, A B^T, as `step` takes them."""


@dataclass(eq=False, slots=True)
class Factors:
    r"""The gradient $AB^\top$ of the matrices that a weight is seen as.

    Args:
        A: Left factors (n, d, r).
        B: Right factors (n, k, r).
        V: The points times B (n, d, r), if a layer has computed them.
        AX: The transposed A times the points (n, r, k), likewise.
        usable: Whether they are finite, as far as the host knows.
    """

    A: Tensor
    B: Tensor
    V: Tensor | None = None
    AX: Tensor | None = None
    usable: bool = True

    @property
    def rank(self) -> int:
        """Columns of each factor."""
        return self.A.shape[-1]

    def negated(self) -> "Factors":
        """Factors of the negative gradient."""
        return Factors(-self.A, self.B, self.V, None if self.AX is None else -self.AX, self.usable)

    def has_squares(self, natural: bool) -> bool:
        """Whether squares of the entries, and of the entries of the product, cannot overflow.

        A `natural` step scales factors up before it multiplies them.
        """
        most = LARGEST_GRADIENT[self.A.dtype]
        a, b = (float(torch.linalg.vector_norm(F)) for F in (self.A, self.B))
        if natural:
            return all(x <= most for x in (a, b, a * b * lengthening(*self.B.shape[-2:])))
        if a <= most and b <= most and a * b <= most:  # no entry exceeds a norm
            return True
        a, b = float(self.A.abs().max()), float(self.B.abs().max())
        return all(x <= most for x in (a, b, a * b * self.rank))  # false for NaN


Gradient: TypeAlias = Tensor | Factors


class Layout(NamedTuple):
    """How the dense gradients of a weight lie in memory.

    Args:
        dtype: Their dtype.
        strided: Shape and strides of the view as matrices (n, d, k); None if that is a copy.
    """

    dtype: torch.dtype
    strided: tuple[tuple[int, ...], tuple[int, ...]] | None


def layout_of(gradient: Gradient, weight: Weight) -> Layout | None:
    """The layout of a dense gradient; None for factors.

    Raises:
        RuntimeError: If the gradient is sparse.
    """
    if isinstance(gradient, Factors):
        return None
    if gradient.is_sparse:
        raise RuntimeError(
            f"this optimiser needs dense gradients: {weight.name} has a sparse one. Use "
            "`sparse=False` in the layer, or another optimiser for it."
        )
    if weight.is_sharded:
        return Layout(gradient.dtype, None)
    view = weight.view(gradient)
    is_copy = view.data_ptr() != gradient.data_ptr()
    return Layout(gradient.dtype, None if is_copy else (view.shape, view.stride()))


class FactorReader:
    """Reads the gradients of parameters that may have them in factors.

    Args:
        step: The factored step, which compares products that a layer has kept.
    """

    def __init__(self, step: FactoredStep) -> None:
        self._step = step
        self._products: dict[Weight, tuple[Any, Tensor, Tensor]] = {}
        self.multiplied: list[Weight] = []
        """Weights whose factors were multiplied since the list was last cleared."""

    def read(
        self,
        group: dict[str, Any],
        weights: Mapping[Tensor, Weight],
        given: GivenFactors,
        states: Mapping[Tensor, dict[str, Any]],
    ) -> list[Gradient | None]:
        """The gradients of a group; nothing is changed.

        Args:
            group: The group.
            weights: The weights of the optimiser.
            given: Factors that the caller of `step` has.
            states: The states of the weights.

        Raises:
            FactorError: If factors do not fit.
            NonFiniteGradientError: If factors are not finite.
        """
        found: list[Gradient | None] = []
        for p in group["params"]:
            grad = p.grad
            if p not in given and type(grad) is not FactoredGradient:
                found.append(grad)
                continue
            weight = weights[p]
            if p.shape != weight.view.shape or not p.data_ptr():
                weight.check_shape()
            _check_options(weight, group)
            if p not in given:
                _refuse_processes(weight)
                factors = _joined(weight, grad)
            elif grad is None:
                _check_given(weight, given[p])
                if weight.is_sharded:
                    found.append(_parts(weight, given[p]))  # all processes check it together
                    continue
                factors = _oriented(weight, *given[p])
            else:
                captured = type(grad) is FactoredGradient
                raise FactorError(
                    f"{weight.name} must have one source of its gradient: it has factors and "
                    f"{'those of a captured layer' if captured else 'a gradient'}. "
                    "Add them up yourself, or capture all layers that use it."
                )
            self._check(weight, group, factors)
            if multiplies_out(weight, group, factors.rank, factors.A.device, states.get(p, {})):
                found.append(self._product(weight, factors))
                self.multiplied.append(weight)
            else:
                found.append(factors)
        return found

    def _check(self, weight: Weight, group: dict[str, Any], factors: Factors) -> None:
        """Raise for factors that cannot be used, unless only the device can detect it."""
        if is_decided_on_device(factors.A):
            return
        factors.usable = factors.has_squares(group.get("natural", False))
        if not factors.usable and group["nonfinite"] == "raise":
            raise NonFiniteGradientError(
                f"the factors of {weight.name}, and their product, must be finite and "
                f"below {LARGEST_GRADIENT[factors.A.dtype]:.0e}, where squares overflow: they are "
                "not. Nothing was changed; lower the learning rate, or look for the overflow "
                'in the model; nonfinite="skip" leaves such weights out.'
            )
        if factors.usable and factors.V is not None:
            X = weight.view(weight.p.detach())
            if not self._step.fits(X, factors.B, factors.V):
                raise FactorError(
                    f"{weight.name} must not change between the forward pass and the step: "
                    "other code wrote to it, so the factors its layer kept are those of another "
                    "weight. Call `zero_grad()`, and do both passes again."
                )

    @torch.no_grad()
    def _product(self, weight: Weight, factors: Factors) -> Tensor:
        """The dense gradient, always in the same memory, so that a CUDA graph does not copy it."""
        kind = factors.A.dtype, weight.p.dtype, factors.A.device
        if weight not in self._products or self._products[weight][0] != kind:
            product = factors.A.new_empty(weight.view.matrices)
            grad = weight.view.restore(product)
            if grad.dtype != weight.p.dtype or grad.data_ptr() != product.data_ptr():
                grad = torch.empty_like(grad, dtype=weight.p.dtype)
            self._products[weight] = kind, product, grad
        _, product, grad = self._products[weight]
        with users_precision(factors.A):
            torch.bmm(factors.A, factors.B.mT, out=product)
        if grad.data_ptr() != product.data_ptr():  # of another dtype, or a copy
            grad.copy_(weight.view.restore(product))
        return grad


def refuse_strangers(given: GivenFactors, weights: Mapping[Tensor, Weight]) -> None:
    """Raise if factors are given for anything but a parameter of the optimiser."""
    strangers = [p for p in given if p not in weights]
    if strangers:
        shape = tuple(getattr(strangers[0], "shape", ()))
        raise FactorError(
            "the keys of `factors` must be parameters of this optimiser: got a "
            f"{type(strangers[0]).__name__} of shape {shape} that it does not have."
        )


def unusable_gradient(weight: Weight, grad: Tensor) -> NonFiniteGradientError:
    """The error for a dense gradient that is not finite."""
    from ..kernels._runtime.finite import unusable  # numba, on use

    bad, most = int(unusable(grad).sum()), LARGEST_GRADIENT[grad.dtype]
    return NonFiniteGradientError(
        f"the gradient of {weight.name} must be finite: {bad} of its {grad.numel()} "
        f"entries are NaN, infinite or above {most:.0e}, where products overflow. Nothing "
        "was changed; lower the learning rate, clip, or look for the overflow in the "
        'model; nonfinite="skip" leaves such weights out.'
    )


def _check_options(weight: Weight, group: dict[str, Any]) -> None:
    size, retraction = group["block_size"], group["retraction"]
    if weight.is_sharded and (group.get("momentum", 0) > 0 or "angle" in group):
        raise FactorError(
            f"factors of a sharded weight need FlowSGD without momentum: {weight.name} has another "
            "step. Give it the gradient."
        )
    if "betas" in group:
        raise FactorError(
            f"factors need FlowSGD: got some for {weight.name}. FlowAdam divides the planes by "
            "second moments, which leaves nothing of low rank. Give it the gradient."
        )
    if isinstance(size, int) or retraction not in ("auto", "exp"):
        raise FactorError(
            f"a factored step is the exact exponential: the group of {weight.name} has "
            f'block_size={size!r} and retraction={retraction!r}. Use block_size="dense" (or '
            '"auto") and retraction="auto", or give it the gradient.'
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


def _joined(weight: Weight, gradient: FactoredGradient) -> Factors:
    """The factors of all uses of a layer, and the products that it has computed.

    For a tall weight X the output of the layer, before its bias, is X B, and the gradient that it
    passes back is A^T X. For a wide weight, whose transpose is X, the gradient passed back is X B.
    Products with an older weight are not used.
    """
    left, right = gradient.factors()
    if not len(left):  # the gradient of an empty batch is zero, and momentum continues
        return _oriented(weight, *(F.new_zeros(F.shape[1], 1) for F in (left, right)))
    left = gradient.scaled(left)
    exact = left.dtype == right.dtype == weight.p.dtype and not weight.has_master
    if not exact:
        return _oriented(weight, left.mT, right.mT)
    A, B = left.mT[None], right.mT[None]
    output = passed = None
    if all(record.version == weight.p._version for record in gradient.records):
        output, passed = (
            _all([record.kept(side) for record in gradient.records])
            for side in ("output", "passed")
        )
    passed = None if passed is None else gradient.scaled(passed)
    if weight.view.wide:
        return Factors(B, A, None if passed is None else passed.mT[None])
    if output is None:
        return Factors(A, B)
    return Factors(A, B, output.mT[None], None if passed is None else passed[None])


def _all(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The rows of all parts; None if one is missing."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return known[0] if len(known) == 1 else torch.cat(known)


def _parts(weight: Weight, pair: tuple[Tensor, Tensor]) -> Factors:
    """The parts of the factors of a sharded weight on this process, which are sent if needed."""
    dtype = weight.p.dtype
    A, B = (F.detach().to(dtype) for F in pair)
    return Factors(*cast("ShardedWeight", weight).factors(A, B))


def _oriented(weight: Weight, A: Tensor, B: Tensor) -> Factors:
    """The factors of the matrices that the weight is seen as, in the precision of the step."""
    A, B = A.detach(), B.detach()
    if A.ndim == 2:
        A, B = A[None], B[None]
    dtype = torch.float64 if weight.p.dtype == torch.float64 else torch.float32
    if not A.dtype == B.dtype == dtype:
        A, B = A.to(dtype), B.to(dtype)
    return Factors(B, A) if weight.view.wide else Factors(A, B)
