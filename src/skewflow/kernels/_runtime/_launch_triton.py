"""Launches of Triton kernels that cost little to repeat.

A launch keeps addresses, not tensors, so that it does not hold on to gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from ..update import Update
from .devices import stream_of

if TYPE_CHECKING:
    from ._operands_triton import Table


class Launch:
    """One kernel, its grid and its arguments; after the first launch only the numbers change.

    Triton inspects every argument of a call to find the compiled kernel. That takes longer than the
    kernel of a 4096 x 4096 matrix runs. Here the compiled kernel gets the same addresses again, as
    in the code that `torch.compile` generates.

    Args:
        kernel: The Triton kernel.
        programs: How many programs run.
        arguments: Arguments by name, except the numbers; names that the kernel lacks are ignored.
        **options: Options of the compiler, such as `num_warps`.
    """

    def __init__(
        self, kernel: Any, programs: int, arguments: dict[str, Any], **options: Any
    ) -> None:
        self.kernel, self.options, self._grid = kernel, options, (programs, 1, 1)
        self._arguments = {k: v for k, v in arguments.items() if k in kernel.arg_names}
        self._places: dict[str, int] = {}
        self._numbers: list[tuple[int, str]] = []
        self._values: list[Any] = []
        self._run: Any = None

    def __call__(self, numbers: dict[str, Any], stream: int) -> None:
        """Launch with the numbers of this step, those of `Launches`."""
        if self._run is None and self._first(numbers):
            return
        values = self._values
        for place, name in self._numbers:
            values[place] = numbers[name]
        self._run(*self._grid, stream, *values)

    def once(self) -> None:
        """Launch a kernel that takes no numbers, on the current stream of its tensors' device."""
        tensors = (value for value in self._arguments.values() if isinstance(value, Tensor))
        self({}, stream_of(next(tensors).device))

    def move(self, name: str, tensor: Tensor) -> None:
        """Give an argument another tensor, at an address with the same alignment."""
        if name in self._places:
            self._values[self._places[name]] = tensor.data_ptr()
        elif name in self._arguments:
            self._arguments[name] = tensor

    def _first(self, numbers: dict[str, Any]) -> bool:
        """Find the compiled kernel; returns whether Triton searched for it and so launched it."""
        names = self.kernel.arg_names
        given = self._arguments | {k: v for k, v in numbers.items() if k in names}
        kinds = (_kind(given[name], name in numbers) for name in names)
        key = (self.kernel, *sorted(self.options.items()), *kinds)
        compiled: Any = _compiled.get(key)
        known = compiled is not None
        if not known:
            compiled = self.kernel[self._grid](**given, **self.options)
            if compiled is None:  # interpreted
                return True
            _compiled[key] = compiled
        # The launcher takes these before the arguments: the kernel, and no hooks of a profiler.
        head = [compiled.function, compiled.packed_metadata, None, None, None]
        values = (given[name] for name in names)
        self._values = head + [v.data_ptr() if isinstance(v, Tensor) else v for v in values]
        self._places = {name: place for place, name in enumerate(names, start=len(head))}
        self._numbers = [(place, name) for name, place in self._places.items() if name in numbers]
        self._run = compiled.run
        self._arguments.clear()
        return not known


_compiled: dict[tuple[Any, ...], Any] = {}
"""Kernels that Triton has compiled, so that other weights of a shape skip its search."""


def _kind(value: Any, changes: bool) -> Any:
    """The properties of an argument that select the compiled kernel, and possibly more."""
    if isinstance(value, Tensor):
        return value.dtype, value.device, value.data_ptr() % 16 == 0
    if not changes:
        return value
    return type(value), isinstance(value, int) and value.bit_length() > 31


@dataclass
class Launches:
    """The launches of one step for some parameters, while these stay at their addresses.

    Args:
        device: Where they are.
        scale: 1 / P(e) of the estimate.
        launches: In their order.
        kept: Other memory that they use, kept alive as long as the launches.
        table: Where many parameters are; None for one.
        wide: They are compiled for gradients at addresses that are multiples of 16.
    """

    device: torch.device
    scale: float
    launches: list[Launch]
    kept: list[Tensor | None]
    table: "Table | None"
    wide: bool

    def move(self, Gs: Sequence[Tensor]) -> bool:
        """Switch to other gradients of the same layout, at the cost of a small copy.

        Returns:
            Whether this succeeded: it fails for addresses that the kernels were not compiled for.
        """
        if self.wide and any(G.data_ptr() % 16 for G in Gs):
            return False
        if self.table is None:
            for launch in self.launches:
                launch.move("G_ptr", Gs[0])
        else:
            self.table.move(Gs)
        return True

    def __call__(self, update: Update, done: int = 0) -> None:
        """Take one step, after the `done` steps that the host has counted."""
        numbers = {
            "scale": -update.lr * self.scale,
            "momentum": update.momentum,
            "beta2": update.beta2 or 0.0,
            "eps": update.eps,
            "done": done,
        }
        index = self.device.index
        if self.device.type == "cuda" and index != torch.cuda.current_device():
            with torch.cuda.device(index):
                self(update, done)
            return
        stream = stream_of(self.device)
        for launch in self.launches:
            launch(numbers, stream)


@cache
def num_multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors; a few for the interpreter, so that it splits the work, too."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def shared_memory(device: torch.device) -> int:
    """Shared memory of one program in bytes; the interpreter, which needs none, has an H200's."""
    if device.type != "cuda":
        return 232448
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index)
    return int(properties["max_shared_mem"])


@cache
def starts_early(device: torch.device) -> bool:
    """Whether a kernel can be launched while the previous one ends: from compute capability 9.0."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
