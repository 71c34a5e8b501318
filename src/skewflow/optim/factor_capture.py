r"""Factors of a linear layer's gradient, kept instead of the gradient.

For $y = aW^\top$ the gradient of W is $g^\top a$ with the gradient g of y. The backward pass has
both factors, whose rank is the batch size, and the step's products with W, which are y and the
gradient $gW$ that is passed back. A hook marks the layer's input, and `linear` of a marked input
has a backward pass that records all of these and never forms the weight's gradient.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.hooks import RemovableHandle

from ..geometry.precision import is_exact
from ..geometry.retractions import HALVES
from .compiled_functions import outside_the_graph
from .factored_gradient import Record, add_record, factored
from .split import split_parameters


class Capture:
    """Handle of a capture: layers whose gradients are kept as factors until `remove` is called.

    Args:
        mark: The hook of all layers.
        handles: Of the layers' hooks.
        weights: Their weights.
    """

    def __init__(
        self, mark: "_Mark", handles: Iterable[RemovableHandle], weights: Iterable[Tensor]
    ) -> None:
        self._mark, self._handles, self._weights = mark, list(handles), list(weights)

    def remove(self) -> None:
        """End the capture, also in copies of the layers, and form the gradients that were kept.

        Nothing is lost, and any optimiser may continue.
        """
        self._mark.active = False
        for handle in self._handles:
            handle.remove()
        for weight in self._weights:
            grad = factored(weight)
            if grad is not None:
                weight.grad = grad.dense()
        self._handles.clear()
        self._weights.clear()


def capture_factors(
    model: nn.Module,
    orthogonal: str | Iterable[str] | Callable[[str, nn.Parameter], bool] | None = None,
) -> Capture:
    r"""Let the linear layers of a model keep the factors of their orthogonal weights' gradients.

    The gradient of a linear layer is a product $g^\top a$ of two tensors of the backward pass,
    whose rank is the batch size. From them `FlowSGD` takes the exact step in the time that forming
    the gradient would take; it forms the gradient only where the rank is so large that this is
    cheaper. `weight.grad` is a `FactoredGradient`: factors of several backward passes, or of
    several uses of a weight, are joined, `zero_grad` drops them, and `clip_grad_norm_` and a
    `GradScaler` work. Do not write to the inputs of the layer before the step; the step raises if
    you do. Not in the paper.

    Hooks of the weight do not see its gradient. Everything that needs its entries raises: another
    optimiser, `clip_grad_value_`, a use of the weight outside its layer. Factors are not averaged
    between processes, so `step` refuses them there. Second derivatives raise, too. In a compiled
    model the layers stay outside the graph.

    Args:
        model: The model; its layers get hooks, which its deep copies keep.
        orthogonal: Which weights are orthogonal, as in `split_parameters`. Those of them that
            belong to a `torch.nn.Linear`, `OrthogonalLinear` among them, are captured.

    Returns:
        A handle whose `remove()` ends the capture.

    Raises:
        ValueError: If no linear layer has such a weight.

    Example:
        >>> from skewflow.nn import OrthogonalLinear
        >>> from skewflow.optim import FlowSGD
        >>> layer = OrthogonalLinear(64, 64, bias=False)
        >>> capture = capture_factors(layer)
        >>> optimizer = FlowSGD(layer.parameters(), lr=0.1, block_size="dense")
        >>> layer(torch.randn(4, 64)).sum().backward()
        >>> layer.weight.grad
        FactoredGradient(shape=(64, 64), rank=4, dtype=torch.float32)
        >>> before = layer.weight.detach().clone()
        >>> optimizer.step()
        >>> bool((layer.weight != before).any())
        True
    """
    chosen = {p for _, p in split_parameters(model, orthogonal)[0]}
    mark, handles, weights = _Mark(), [], []
    for module in model.modules():
        plain = type(module).forward is nn.Linear.forward
        if plain and isinstance(module, nn.Linear) and module.weight in chosen:
            handles.append(module.register_forward_pre_hook(mark, with_kwargs=True))
            weights.append(module.weight)
    if not handles:
        raise ValueError(
            f"a torch.nn.Linear must have one of the {len(chosen)} orthogonal weights: none has. "
            "Pass factors of your own to `FlowSGD.step(factors=...)`."
        )
    return Capture(mark, handles, weights)


class _Mark:
    """The hook of captured layers, which marks their inputs while it is active."""

    def __init__(self) -> None:
        self.active = True

    def __deepcopy__(self, _: Any) -> "_Mark":
        """Return the same hook: a copied layer is captured as long as the original."""
        return self

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Mark the input."""
        if torch.compiler.is_dynamo_compiling():
            return outside_the_graph(self.__call__, module, args, kwargs)
        a = args[0] if args else kwargs.get("input")
        transformed = torch._C._are_functorch_transforms_active()
        if type(a) not in (Tensor, nn.Parameter) or transformed or not torch.is_grad_enabled():
            return None
        if not self.active:
            return None
        marked = a.as_subclass(_Marked)
        return ((marked, *args[1:]), kwargs) if args else (args, {**kwargs, "input": marked})


class _Marked(Tensor):
    """The input of a captured layer: a plain tensor to all functions but `linear`.

    The weight does not change for other threads. Other hooks of the layer may change its output, or
    its input, in which case the gradient is formed.
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
    """`linear` that records its factors; a weight that no optimiser can hold gets its gradient."""
    if not (isinstance(weight, nn.Parameter) and weight.requires_grad):
        return linear(a, weight, bias)
    out: Tensor = _Linear.apply(a, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    """`linear` whose backward pass records factors instead of forming the weight's gradient.

    The weight gets no gradient, but is an input, so that the backward pass knows whether one is
    needed.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wide = weight.shape[0] < weight.shape[1]
        useless = wide or weight.dtype in HALVES or torch.is_autocast_enabled(a.device.type)
        y = linear(a, weight, bias if useless else None)
        product = y = y.data if y._is_view() else y  # a view could not be overwritten afterwards
        if bias is not None and not useless:
            y = product + bias  # a small product would lose its digits to a large bias
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
        except RuntimeError as error:  # the engine reports this while torch.autograd.grad runs
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
            output = _rows(product) if whole else None
            back = _rows(passed) if passed is not None and is_exact(passed) else None
            add_record(leaf.variable, Record(left, _rows(a), output, ctx.version, back))
        return passed, None, left.sum(0).to(ctx.dtype) if ctx.needs_input_grad[2] else None


def _rows(t: Tensor) -> Tensor:
    rows = t.detach()
    return rows if rows.ndim == 2 else rows.reshape(-1, t.shape[-1])
