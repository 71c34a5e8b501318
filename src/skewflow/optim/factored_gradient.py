r"""A gradient $g^\top a$ that is kept as its factors: the `.grad` of a captured weight."""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..errors import FactorError

aten = torch.ops.aten


class Record:
    """The record of one use of a layer: the weight's gradient is `left` transposed times `right`.

    Other code may hold the memory of these tensors, so their versions are kept, too.

    Args:
        left: Gradients of the outputs, (r, rows of the weight).
        right: Inputs, (r, columns of the weight).
        output: Inputs times the weight transposed, (r, rows), or None if it was overwritten or no
            step uses it.
        version: Version of the weight when the layer used it.
        passed: `left` times the weight, (r, columns), or None if it was not needed or has low
            precision.
    """

    def __init__(
        self,
        left: Tensor,
        right: Tensor,
        output: Tensor | None,
        version: int,
        passed: Tensor | None = None,
    ) -> None:
        self.version, self.rank = version, len(left)
        self._tensors = {"left": left, "right": right, "output": output, "passed": passed}
        self._versions = {n: -1 if t is None else t._version for n, t in self._tensors.items()}

    def kept(self, name: str) -> Tensor | None:
        """A recorded tensor, or None if it is missing or was written to since."""
        tensor = self._tensors[name]
        return None if tensor is None or tensor._version != self._versions[name] else tensor


class FactoredGradient(Tensor):
    r"""The gradient of a weight as factors, which `FlowSGD` steps by; see `capture_factors`.

    It has a norm and can be scaled without being formed: `clip_grad_norm_` and a `GradScaler` work
    as with any gradient. Everything that needs its entries raises a `FactorError`: another
    optimiser, `clip_grad_value_`, a second gradient to be added. `dense()` forms it.

    Args:
        weight: The weight.
        records: The records of the uses of its layer.

    Example:
        >>> from skewflow.nn import OrthogonalLinear
        >>> from skewflow.optim import capture_factors
        >>> layer = OrthogonalLinear(4, 4, bias=False)
        >>> _ = capture_factors(layer)
        >>> layer(torch.ones(1, 4)).sum().backward()
        >>> type(layer.weight.grad).__name__, float(layer.weight.grad.norm())
        ('FactoredGradient', 4.0)
    """

    records: list[Record]
    scale: Tensor | None
    """Factor by which the gradient was multiplied since it was recorded."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, weight: Tensor, records: Sequence[Record]) -> "FactoredGradient":
        """A tensor without memory."""
        self: FactoredGradient = Tensor._make_wrapper_subclass(
            cls, weight.shape, dtype=weight.dtype, device=weight.device
        )
        self.records, self.scale = list(records), None
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        rank = sum(record.rank for record in self.records)
        return f"FactoredGradient(shape={tuple(self.shape)}, rank={rank}, dtype={self.dtype})"

    def factors(self) -> tuple[Tensor, Tensor]:
        """The factors (r, rows) and (r, columns) of all uses, before they are scaled.

        Raises:
            FactorError: If something has written to them.
        """
        return self._joined("left", self.shape[0]), self._joined("right", self.shape[1])

    def _joined(self, side: str, size: int) -> Tensor:
        parts = [record.kept(side) for record in self.records]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            raise FactorError(
                "the inputs of a captured layer, and the gradients of its outputs, must not change "
                "between the backward pass and the step, since they are the factors of its "
                "weight's gradient: something wrote to them. Step first, or give the layer a copy."
            )
        if not known:
            return torch.empty(0, size, dtype=self.dtype, device=self.device)
        return known[0] if len(known) == 1 else torch.cat(known)

    def scaled(self, tensor: Tensor) -> Tensor:
        """A left factor, or a product with it, times the scale of the gradient."""
        return tensor if self.scale is None else tensor * self.scale.to(tensor.dtype)

    @torch.no_grad()
    def dense(self) -> Tensor:
        """The gradient itself."""
        left, right = self.factors()
        return (self.scaled(left).mT @ right.to(left.dtype)).to(self.dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Dispatch norms, scaling and other operations that need no entries."""
        if func is aten.linalg_vector_norm.default:
            return _norm(*args, **(kwargs or {}))
        if func in (aten.mul_.Tensor, aten.mul_.Scalar) and isinstance(args[0], cls):
            _multiply(args[0], args[1])
            return args[0]
        if func is aten.zero_.default:
            args[0].records.clear()
            return args[0]
        if func is aten.detach.default:
            return args[0]
        if func is aten._amp_foreach_non_finite_check_and_unscale_.default:
            return _unscale(*args)
        raise FactorError(
            "the gradient of a captured layer is kept as factors: it has a norm and can be scaled, "
            f"but {func} needs its entries. Step this weight only by FlowSGD, use it only in its "
            "layer, or call `remove()` of the handle that `capture_factors` returned."
        )


def add_record(weight: Tensor, record: Record) -> None:
    """Add one use of a layer to the gradient of its weight.

    Raises:
        FactorError: If the weight has a gradient that was formed.
    """
    with _adding:
        grad = weight.grad
        if grad is None:
            weight.grad = FactoredGradient(weight, [record])
        elif isinstance(grad, FactoredGradient):
            grad.records.append(record)
        else:
            raise FactorError(
                "a captured weight must have one source of its gradient: it has one that was "
                "formed. Call `zero_grad()` first, or capture all layers that use it."
            )


_adding = Lock()


def factored(weight: Tensor) -> FactoredGradient | None:
    """The gradient of a weight, if it is kept as factors."""
    grad = weight.grad
    return grad if type(grad) is FactoredGradient else None


def formed(weight: Tensor) -> Tensor | None:
    """The gradient of a weight, if it is dense."""
    grad = weight.grad
    return None if type(grad) is FactoredGradient else grad


@torch.no_grad()
def _norm(
    grad: FactoredGradient,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""The norm of the gradient; $\|g^\top a\|_F^2$ is the sum of $gg^\top$ times $aa^\top$."""
    if ord != 2 or dim is not None or keepdim:
        return torch.linalg.vector_norm(grad.dense(), ord, dim, keepdim, dtype=dtype)
    left, right = (factor.double() for factor in grad.factors())
    squared = ((left @ left.mT) * (right @ right.mT)).sum().clamp_(min=0)
    return grad.scaled(squared.sqrt()).abs().to(dtype or grad.dtype)


def _multiply(grad: FactoredGradient, factor: Any) -> None:
    if isinstance(factor, Tensor) and factor.numel() != 1:
        raise FactorError(
            "the gradient of a captured layer can be multiplied by one number: got a tensor of "
            f"shape {tuple(factor.shape)}. Remove the capture."
        )
    factor = torch.as_tensor(factor, device=grad.device).detach().double().reshape(())
    grad.scale = factor if grad.scale is None else grad.scale * factor


def _unscale(grads: Sequence[Tensor], found_inf: Tensor, inverse: Tensor) -> None:
    """Unscale and check gradients, as a `GradScaler` does for all gradients of a kind."""
    plain = [grad for grad in grads if not isinstance(grad, FactoredGradient)]
    if plain:
        torch._amp_foreach_non_finite_check_and_unscale_(plain, found_inf, inverse)
    for grad in grads:
        if isinstance(grad, FactoredGradient):
            finite = [torch.isfinite(factor).all() for factor in grad.factors()]
            found_inf.copy_(torch.maximum(found_inf, 1.0 - (finite[0] & finite[1]).to(found_inf)))
            _multiply(grad, inverse)
