"""From the tensors of a step to the launches of its kernels, which then cost little to repeat.

One launch reaches many parameters of one shape: their addresses travel as a table on the device.
A launch keeps addresses, not tensors, so that it does not hold on to gradients.
"""

# mypy: disable-error-code="misc, valid-type"

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..tournaments.partitions import edge_probability
from ._devices import stream_of
from .permutation._triton import permutation_options
from .update import Update

TRITON_TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


class Launch:
    """One kernel, its grid and its arguments; from the second time on only the numbers change.

    Triton looks at every argument of a call to find the compiled kernel, which takes longer than
    the kernel of a 4096 x 4096 matrix runs. Here the compiled kernel is told the same addresses
    again, the way the code that `torch.compile` generates does it.

    Args:
        kernel: The Triton kernel.
        programs: How many programs run.
        arguments: Arguments by name, but for the numbers; others than the kernel's are left out.
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
        """Find the compiled kernel; returns whether Triton had to, which then has launched it."""
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
        # What the launcher wants before the arguments: the kernel, and no hooks of a profiler.
        head = [compiled.function, compiled.packed_metadata, None, None, None]
        values = (given[name] for name in names)
        self._values = head + [v.data_ptr() if isinstance(v, Tensor) else v for v in values]
        self._places = {name: place for place, name in enumerate(names, start=len(head))}
        self._numbers = [(place, name) for name, place in self._places.items() if name in numbers]
        self._run = compiled.run
        self._arguments.clear()
        return not known


_compiled: dict[tuple[Any, ...], Any] = {}
"""Kernels that Triton has compiled, so that other weights of a shape begin without its search."""


def _kind(value: Any, changes: bool) -> Any:
    """What decides which compiled kernel takes an argument, or more than that."""
    if isinstance(value, Tensor):
        return value.dtype, value.device, value.data_ptr() % 16 == 0
    if not changes:
        return value
    return type(value), isinstance(value, int) and value.bit_length() > 31


@dataclass
class Launches:
    """The launches of one step on some parameters, while these stay put.

    Args:
        device: Where they are.
        scale: 1 / P(e) of the estimate.
        launches: In their order.
        kept: Other memory that they use; it lives as long as the launches.
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
        """Go on with other gradients of the same layout, at the cost of a small copy.

        Returns:
            Whether that could be done: not for addresses that the kernels were not compiled for.
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
        """One step, after `done` that the host has counted."""
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


@dataclass(frozen=True)
class Operands:
    """The tensors of one step on parameters of one shape, dtype and layout.

    Args:
        Xs: Points (n, d, k), written to.
        Gs: Euclidean gradients of one layout, in any float dtype.
        Ms: Momentum buffers in the dtype of the points, written to; or None.
        Ps: Low-precision tensors of one layout that receive the rounded points; or None.
        streams: Number of the first matrix of each parameter.
        replayed: Steps that CUDA graphs have replayed, an int64 scalar on the device; or None.
        flags: One int32 and one for each parameter, in memory that the host can read: set when
            a product was not finite, and its rows were left as they were.
        live: One int32 for each parameter, on the device: 0 leaves it alone; or None.
        skipped: How often each parameter was left alone, int64 there; or None.
        moments: Second moments of the rows of each matrix by which its planes are divided, on the
            device; or None.
        squares: What `row_moments` keeps to compute them, laid out alike; or None.
        since: Steps of the optimiser that the parameters were absent from, those left alone apart.
    """

    Xs: Sequence[Tensor]
    Gs: Sequence[Tensor]
    Ms: Sequence[Tensor] | None
    Ps: Sequence[Tensor] | None
    streams: Sequence[int]
    replayed: Tensor | None
    flags: Tensor
    live: Tensor | None = None
    skipped: Tensor | None = None
    moments: Tensor | None = None
    squares: Tensor | None = None
    since: int = 0

    @property
    def num_matrices(self) -> int:
        """Of all parameters together."""
        return len(self.Xs) * self.Xs[0].shape[0]

    @cached_property
    def table(self) -> "Table | None":
        """Where many parameters are; None for one."""
        return Table(self) if len(self.Xs) > 1 else None

    @property
    def wide(self) -> bool:
        """The kernels are compiled for gradients that allow wide loads.

        A table allows them for all of its addresses or for none.
        """
        every = [*self.Xs, *self.Gs, *(self.Ms or ()), *(self.Ps or ())]
        return all(t.data_ptr() % 16 == 0 for t in (self.Gs if len(self.Xs) == 1 else every))

    @property
    def kept(self) -> list[Tensor | None]:
        """What the launches read besides the parameters, their gradients and buffers."""
        table = None if self.table is None else self.table.on_device
        return [
            table,
            self.replayed,
            self.flags,
            self.live,
            self.skipped,
            self.moments,
            self.squares,
        ]


@cache
def scale_of(d: int, block_size: int) -> float:
    """The weight 1 / P(e) of the uniform estimate."""
    return float(1 / edge_probability(d, block_size))


def common_arguments(operands: Operands, update: Update) -> dict[str, Any]:
    """What every kernel that reads the gradient takes: pointers, strides, types and switches."""
    Xs, Gs, Ms, Ps = operands.Xs, operands.Gs, operands.Ms, operands.Ps
    n, d, k = Xs[0].shape
    many = len(Xs) > 1
    return {
        "X_ptr": None if many else Xs[0],
        "G_ptr": None if many else Gs[0],
        "M_ptr": None if many or Ms is None else Ms[0],
        "P_ptr": None if many or Ps is None else Ps[0],
        "table_ptr": None if operands.table is None else operands.table.on_device,
        "replayed_ptr": operands.replayed,
        "flags_ptr": operands.flags,
        "live_ptr": operands.live,
        "skipped_ptr": operands.skipped,
        "moments_ptr": operands.moments,
        "squares_ptr": operands.squares,
        "since": operands.since,
        "first_stream": operands.streams[0],
        "seed": update.seed,
        "n": n,
        "d": d,
        "k": k,
        "stride_x": Xs[0].stride(),
        "stride_g": Gs[0].stride(),
        "stride_m": Ms[0].stride() if Ms else (0, 0, 0),
        "stride_p": Ps[0].stride() if Ps else (0, 0, 0),
        "X_TYPE": TRITON_TYPES[Xs[0].dtype],
        "G_TYPE": TRITON_TYPES[Gs[0].dtype],
        "P_TYPE": TRITON_TYPES[Ps[0].dtype] if Ps else tl.float32,
        "ALIGNED": many and operands.wide,
        "HAS_M": Ms is not None,
        "HAS_P": Ps is not None,
        "NESTEROV": update.nesterov,
        "MAXIMIZE": update.maximize,
        "CAYLEY": update.retraction == "cayley",
        "INDEPENDENT": update.independent,
        **permutation_options(d),
    }


class Table:
    """Addresses of points, gradients, momenta and low-precision copies, and streams, on the device.

    What changes them is queued behind the kernels that read them.
    """

    def __init__(self, operands: Operands) -> None:
        Xs = operands.Xs
        tensors = (Xs, operands.Gs, operands.Ms, operands.Ps)
        columns = [[t.data_ptr() for t in ts] if ts else [0] * len(Xs) for ts in tensors]
        self._rows = np.array([*columns, operands.streams], dtype=np.int64).T.copy()
        self.on_device = torch.empty(self._rows.shape, dtype=torch.int64, device=Xs[0].device)
        self._send()

    def move(self, Gs: Sequence[Tensor]) -> None:
        """The gradients are elsewhere now."""
        self._rows[:, 1] = [G.data_ptr() for G in Gs]
        self._send()

    def _send(self) -> None:
        host = torch.from_numpy(self._rows.copy())
        if self.on_device.is_cuda:
            host = host.pin_memory()
            if torch.cuda.is_current_stream_capturing():
                _captured.append(host)  # every replay copies from it
        self.on_device.copy_(host, non_blocking=True)


_captured: list[Tensor] = []


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Of a CUDA device; a few for the interpreter, so that it, too, splits the work."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that one program may have; an H200's for the interpreter, which needs none."""
    if device.type != "cuda":
        return 232448
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index)
    return int(properties["max_shared_mem"])


@cache
def starts_early(device: torch.device) -> bool:
    """Whether a kernel can be launched while the one before it ends: from compute 9.0 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
