"""Counts what a process puts into collectives, where torch calls them."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COLLECTIVES = {
    "allreduce_": ("all-reduce", 0),
    "all_reduce": ("all-reduce", 0),
    "_allgather_base_": ("all-gather", 1),
    "all_gather_into_tensor": ("all-gather", 0),
    "_reduce_scatter_base_": ("reduce-scatter", 1),
    "reduce_scatter_tensor": ("reduce-scatter", 0),
    "alltoall_base_": ("all-to-all", 1),
    "all_to_all_single": ("all-to-all", 0),
}
"""The kind of each collective, and the place of its input among the arguments."""

NO_COLLECTIVES = ("wait_tensor", "_wrap_tensor_autograd", "barrier")


@dataclass
class Call:
    """What this process puts into a collective.

    Args:
        kind: "all-reduce", "all-gather", "reduce-scatter" or "all-to-all".
        numbers: How many numbers.
        bytes: Their size.
    """

    kind: str
    numbers: int
    bytes: int


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the collectives of a block of code, also those inside operations of DTensor.

    Attributes:
        calls: The collectives, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a collective; operations of DTensor come back as those of their parts."""
        from torch.distributed.tensor import DTensor  # takes a second

        if DTensor in types:
            return NotImplemented
        space, name = func.name().split(".")[0].split("::")
        if space in ("c10d", "_c10d_functional") and name not in NO_COLLECTIVES:
            kind, place = COLLECTIVES[name]
            tensors = [t for t in tree_leaves(args[place]) if isinstance(t, Tensor)]
            numbers = sum(t.numel() for t in tensors)
            self.calls.append(Call(kind, numbers, sum(t.nbytes for t in tensors)))
        return func(*args, **(kwargs or {}))

    @property
    def numbers(self) -> list[int]:
        """How many numbers each collective got."""
        return [call.numbers for call in self.calls]

    def sent(self, processes: int) -> float:
        """Bytes that this process sends if all collectives are rings."""
        return sum(ring(call.kind, call.bytes, processes) for call in self.calls)


def ring(kind: str, size: float, processes: int) -> float:
    """Bytes that a process sends in a ring over some processes.

    Args:
        kind: As in `Call`.
        size: Bytes that the process puts in.
        processes: Their number.

    Example:
        >>> [ring(kind, 8, 4) for kind in ("all-reduce", "all-gather", "all-to-all")]
        [12.0, 24, 6.0]
    """
    others = processes - 1
    return {
        "all-reduce": 2 * size * others / processes,
        "all-gather": size * others,
        "reduce-scatter": size * others / processes,
        "all-to-all": size * others / processes,
    }[kind]
