r"""Factors of a linear layer's gradient, kept instead of the gradient.

For $y = aW^\top$ the gradient of W is $g^\top a$ with the gradient g of y: its factors are what the
backward pass has at hand, of rank batch, and the products of the step with W are y and the gradient
$gW$ that is passed back. A hook marks the layer's input, and `linear` of a marked input has a
backward pass that notes all of this and never forms the weight's gradient.
"""

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from ..geometry.precision import is_exact
from ..geometry.retractions import HALVES
from ._capturing import outside_the_graph
from .split import split_parameters


@dataclass
class Record:
    """What one use of a layer leaves: the gradient of its weight is `left` transposed, `right`.

    Args:
        left: Gradients of the outputs, (r, rows of the weight).
        right: Inputs, (r, columns of the weight).
        output: Inputs times the weight transposed, (r, rows), or None where it was overwritten, or
            a step has no use for it.
        version: Of the weight, when the layer used it.
        passed: `left` times the weight, (r, columns), or None where it was not needed or is coarse.
    """

    left: Tensor
    right: Tensor
    output: Tensor | None
    version: int
    passed: Tensor | None = None

    def __post_init__(self) -> None:
        self._versions: dict[str, int] = {}
        for name in ("left", "right", "output"):
            self.keep(name, getattr(self, name))

    def keep(self, name: str, tensor: Tensor | None) -> None:
        """Keep a tensor whose memory others may have, too."""
        setattr(self, name, tensor)
        self._versions[name] = -1 if tensor is None else tensor._version

    def kept(self, name: str) -> Tensor | None:
        """A tensor, or None if there is none, or somebody has written to it."""
        tensor: Tensor | None = getattr(self, name)
        return None if tensor is None or tensor._version != self._versions[name] else tensor


_records: MutableMapping[Tensor, list[Record]] = WeakIdKeyDictionary()
"""By weight; nothing here keeps a weight alive, and a copy of a model starts with none."""


def recorded(weight: Tensor) -> list[Record]:
    """The records of a weight since they were dropped."""
    return _records.get(weight, [])


def is_anything_recorded() -> bool:
    """Whether any weight has records; without captures no step need look for any."""
    return len(_records) > 0


def drop(weights: Iterable[Tensor]) -> None:
    """Forget the records of these weights."""
    for weight in weights if is_anything_recorded() else ():
        _records.pop(weight, None)


class Capture:
    """Layers whose gradients are kept as factors, until it is removed.

    Args:
        handles: Of the layers' hooks.
    """

    def __init__(self, handles: Iterable[RemovableHandle]) -> None:
        self._handles = list(handles)

    def remove(self) -> None:
        """The layers form their gradients again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def capture_factors(
    model: nn.Module,
    orthogonal: str | Iterable[str] | Callable[[str, nn.Parameter], bool] | None = None,
) -> Capture:
    r"""Let the linear layers of a model keep the factors of their orthogonal weights' gradients.

    The gradient of a linear layer is a product $g^\top a$ of what its backward pass has at hand, of
    rank batch. With it `FlowSGD` takes the exact step in the time the gradient itself would take,
    which is not formed unless the rank is so large that this is cheaper; even then `weight.grad`
    stays None, and `FlowSGD.step` finds the factors. Those of several backward passes, or of
    several uses of a weight, are joined; `FlowSGD.zero_grad` drops them, the `zero_grad` of a
    module does not. The weight and the inputs of its layer must not be written to before the step,
    which refuses that. Not in the paper.

    What works on gradients does not see factors: hooks of the weight, clipping, and a `GradScaler`,
    which is refused. Factors are not averaged between processes, so `step` refuses them there.
    Second derivatives are refused, too. In a compiled model the layers stay outside of the graph.

    Args:
        model: The model; its layers get hooks.
        orthogonal: Which weights are orthogonal, as in `split_parameters`. Those of them that
            belong to a `torch.nn.Linear`, `OrthogonalLinear` among them, are captured.

    Returns:
        Its `remove()` undoes it.

    Raises:
        ValueError: If no linear layer has such a weight.

    Example:
        >>> from skewflow.nn import OrthogonalLinear
        >>> from skewflow.optim import FlowSGD
        >>> layer = OrthogonalLinear(64, 64, bias=False)
        >>> capture = capture_factors(layer)
        >>> optimizer = FlowSGD(layer.parameters(), lr=0.1, block_size="dense")
        >>> layer(torch.randn(4, 64)).sum().backward()
        >>> layer.weight.grad is None
        True
        >>> before = layer.weight.detach().clone()
        >>> optimizer.step()
        >>> bool((layer.weight != before).any())
        True
    """
    chosen = {p for _, p in split_parameters(model, orthogonal)[0]}
    handles = []
    for module in model.modules():
        plain = type(module).forward is nn.Linear.forward
        if plain and isinstance(module, nn.Linear) and module.weight in chosen:
            handles.append(module.register_forward_pre_hook(_mark, with_kwargs=True))
    if not handles:
        raise ValueError(
            f"a torch.nn.Linear must have one of the {len(chosen)} orthogonal weights: none has. "
            "Pass factors of your own to `FlowSGD.step(factors=...)`."
        )
    return Capture(handles)


def _mark(module: nn.Module, args: Any, kwargs: Any) -> Any:
    if torch.compiler.is_dynamo_compiling():
        return outside_the_graph(_mark, module, args, kwargs)
    a = args[0] if args else kwargs.get("input")
    transformed = torch._C._are_functorch_transforms_active()
    if type(a) not in (Tensor, nn.Parameter) or transformed or not torch.is_grad_enabled():
        return None
    marked = a.as_subclass(_Marked)
    return ((marked, *args[1:]), kwargs) if args else (args, {**kwargs, "input": marked})


class _Marked(Tensor):
    """The input of a captured layer: a plain tensor to all functions but `linear`.

    So the weight stays as it is for other threads, and other hooks of the layer may change its
    input, which then forms the gradient, and its output.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function with plain tensors."""
        if torch.compiler.is_dynamo_compiling():
            return outside_the_graph(cls.__torch_function__, func, types, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return (_linear if func is linear else func)(*args, **(kwargs or {}))


def _linear(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` that leaves a record; weights that no optimiser can have get their gradient."""
    if not (isinstance(weight, nn.Parameter) and weight.requires_grad):
        return linear(a, weight, bias)
    out: Tensor = _Linear.apply(a, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    """`linear`, whose backward pass notes what it has at hand instead of the weight's gradient.

    The weight gets none, but is an input: so the backward pass knows whether it was asked for one.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wide = weight.shape[0] < weight.shape[1]
        useless = wide or weight.dtype in HALVES or torch.is_autocast_enabled(a.device.type)
        y = linear(a, weight, bias if useless else None)
        product = y = y.data if y._is_view() else y  # a view could not be overwritten afterwards
        if bias is not None and not useless:
            y = product + bias  # apart, since a small product loses its digits to a large bias
        ctx.save_for_backward(a, weight)
        ctx.version = weight._version
        ctx.dtype = None if bias is None else bias.dtype
        ctx.product = None if useless else product.detach()
        ctx.product_version = product._version  # without a bias an activation may overwrite it
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (a, weight), leaf = ctx.saved_tensors, ctx.next_functions[1][0]
        if torch.is_grad_enabled():
            raise RuntimeError(
                "captured layers have first derivatives only: a backward pass has "
                "create_graph=True. Remove the capture for it."
            )
        try:
            counts = torch._C._will_engine_execute_node(leaf)
        except RuntimeError as error:  # so says the engine while torch.autograd.grad runs
            raise RuntimeError(
                "a captured layer forms no gradient of its weight: torch.autograd.grad asks for "
                "it. Call `backward()` instead, or remove the capture."
            ) from error
        passed, left = None, _rows(g)
        if ctx.needs_input_grad[0]:
            passed = (g @ weight.to(g.dtype)).to(a.dtype)
        if counts:
            product = ctx.product
            whole = product is not None and product._version == ctx.product_version
            record = Record(left, _rows(a), _rows(product) if whole else None, ctx.version)
            if passed is not None and is_exact(passed):
                record.keep("passed", _rows(passed))
            _records.setdefault(leaf.variable, []).append(record)
        return passed, None, left.sum(0).to(ctx.dtype) if ctx.needs_input_grad[2] else None


def _rows(t: Tensor) -> Tensor:
    rows = t.detach()
    return rows if rows.ndim == 2 else rows.reshape(-1, t.shape[-1])
