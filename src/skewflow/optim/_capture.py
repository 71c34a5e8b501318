r"""Factors of a linear layer's gradient, kept instead of the gradient.

For $y = aW^\top$ the gradient of W is $g^\top a$ with the gradient g of y: its factors are what the
backward pass has at hand, of rank batch, and the products of the step with W are y and the gradient
$gW$ that is passed back. The hooks hide the weight from autograd during the layer's own forward
pass, so its gradient is never formed, and let input and output pass through functions that note
what comes by.
"""

import weakref
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from ..geometry.precision import is_exact
from .split import split_parameters


@dataclass
class Record:
    """What one use of a layer leaves: the gradient of its weight is `left` transposed, `right`.

    Args:
        left: Gradients of the outputs, (r, rows of the weight).
        right: Inputs, (r, columns of the weight).
        output: Inputs times the weight transposed, (r, rows), or None where it was overwritten.
        version: Of the weight, when the layer used it.
        task: The backward pass that it belongs to.
        passed: `left` times the weight, (r, columns), or None where it was not needed or is coarse.
    """

    left: Tensor
    right: Tensor
    output: Tensor | None
    version: int
    task: int
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


class Records:
    """The records of one weight, and a scalar whose gradient says that a backward pass counts.

    A pass that asks only for gradients of other tensors goes through the layer, too, but does not
    accumulate into the scalar; then its records do not count, as no gradient would have.
    """

    def __init__(self, weight: Tensor) -> None:
        self.done: list[Record] = []
        self._running: list[Record] = []
        self.anchor = torch.zeros((), device=weight.device, requires_grad=True)
        self.anchor.register_post_accumulate_grad_hook(self._finish)  # type: ignore[no-untyped-call]

    def add(self, record: Record) -> None:
        """Keep a record until its backward pass comes to the scalar."""
        self._running = [*(r for r in self._running if r.task == record.task), record]

    def _finish(self, anchor: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        self.done += [record for record in self._running if record.task == task]
        self._running = []
        anchor.grad = None


_records: MutableMapping[Tensor, Records] = WeakIdKeyDictionary()
"""By weight; nothing here keeps a weight alive, and a copy of a model starts with none."""

_running: "weakref.WeakKeyDictionary[nn.Module, _Use]" = weakref.WeakKeyDictionary()
"""Layers whose forward pass runs with a weight that autograd does not see."""


def recorded(weight: Tensor) -> list[Record]:
    """The records of a weight since they were dropped."""
    return _records[weight].done if weight in _records else []


def drop(weights: Iterable[Tensor]) -> None:
    """Forget the records of these weights."""
    for weight in weights:
        if weight in _records:
            _records[weight].done = []


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
    which is then never formed: `weight.grad` stays None, and `FlowSGD.step` finds the factors.
    Those of several backward passes, or of several uses of a weight, are joined;
    `FlowSGD.zero_grad` drops them, the `zero_grad` of a module does not. The weight and the inputs
    of its layer must not be written to before the step, which refuses that. Not in the paper.

    What works on gradients does not see factors: clipping, and a `GradScaler`, which is refused.
    Factors are not averaged between processes, so `step` refuses them there. Compiled models are
    refused.

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
        >>> layer(torch.randn(4, 64)).square().sum().backward()
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
            handles.append(module.register_forward_pre_hook(_hide, with_kwargs=True))
            handles.append(module.register_forward_hook(_show, with_kwargs=True, always_call=True))
    if not handles:
        raise ValueError(
            f"a torch.nn.Linear must have one of the {len(chosen)} orthogonal weights: none has. "
            "Pass factors of your own to `FlowSGD.step(factors=...)`."
        )
    return Capture(handles)


def _hide(module: nn.Module, args: Any, kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "factors cannot be captured in a compiled model: leave the captured layers out of "
            "torch.compile, or remove the capture."
        )
    assert isinstance(module, nn.Linear)
    weight, bias = module.weight, module.bias
    a = args[0] if args else kwargs.get("input")
    if not (weight.requires_grad and torch.is_grad_enabled() and isinstance(a, Tensor)):
        return None
    if weight not in _records:
        _records[weight] = Records(weight)
    use = _Use(_records[weight], weight._version, None if bias is None else bias.detach())
    use.a = _Passed.apply(a, use) if a.requires_grad else a  # type: ignore[no-untyped-call]
    _running[module] = use
    weight.requires_grad_(False)
    return ((use.a, *args[1:]), kwargs) if args else (args, {**kwargs, "input": use.a})


def _show(module: nn.Module, args: Any, kwargs: Any, y: Any) -> Any:
    use = _running.pop(module, None)
    if use is None:
        return y
    assert isinstance(module, nn.Linear) and use.a is not None
    module.weight.requires_grad_(True)
    a, use.a = use.a, None
    if not isinstance(y, Tensor):  # the forward pass has failed
        return y
    out: Tensor = _Note.apply(y, a.detach(), use.records.anchor, use)  # type: ignore[no-untyped-call]
    use.y, use.y_version = out.detach(), out._version
    return out


@dataclass
class _Use:
    """One forward pass of a layer.

    Args:
        records: Where its record goes.
        version: Of the weight.
        bias: Of the layer.
        a: The input, while the layer runs.
        y: The output, in the memory of the layer's own.
        y_version: Its version: an activation in place overwrites it.
        record: Of the last backward pass.
    """

    records: Records
    version: int
    bias: Tensor | None
    a: Tensor | None = None
    y: Tensor | None = None
    y_version: int = -1
    record: Record | None = None

    def output(self) -> Tensor | None:
        """The output without the bias, (r, rows)."""
        if self.y is None or self.y._version != self.y_version:
            return None
        return _rows(self.y if self.bias is None else self.y - self.bias)


class _Note(torch.autograd.Function):
    """The identity, in place, whose backward pass notes the gradient that passes."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, a: Tensor, anchor: Tensor, use: _Use) -> Tensor:
        ctx.mark_dirty(y)  # a view of y could not be overwritten by what follows
        ctx.save_for_backward(a)
        ctx.use = use
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (a,), use = ctx.saved_tensors, ctx.use
        task = torch._C._current_graph_task_id()
        use.record = Record(_rows(g), _rows(a), use.output(), use.version, task)
        use.records.add(use.record)
        return g, None, use.records.anchor.detach(), None


class _Passed(torch.autograd.Function):
    """The identity, whose backward pass notes what the layer passes back."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, use: _Use) -> Tensor:
        ctx.use = use
        return a.view_as(a)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        if ctx.use.record is not None and is_exact(g):
            ctx.use.record.keep("passed", _rows(g))
        return g, None


def _rows(t: Tensor) -> Tensor:
    return t.detach().reshape(-1, t.shape[-1])
