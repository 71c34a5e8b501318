"""A step that is replayed as one CUDA graph from the third time on, to save time of the host."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from ...kernels._runtime.devices import on_device
from ...kernels._runtime.graphs import Graphs
from ...kernels.multiply_where import has_kernel

WARM_UP = 2
"""Steps after which everything is compiled and loaded."""

LARGEST = 1 << 23
"""Most entries of the points. Larger steps keep the device busy without a graph, and a graph keeps
its intermediate results allocated, about twelve times the size of the points."""

Step = Callable[[Sequence[Tensor], Tensor], None]
"""Takes gradients and the learning rate, a float64 on the device. Everything else that it reads or
writes stays at its address, and it frees what it allocates."""


class GraphReplay:
    """The graph of a step, its gradients and its learning rate.

    The graph reads the gradients at their addresses until they move. From then on it has a buffer,
    and the gradients are copied into it.

    Args:
        graphs: Makes the graph.
    """

    def __init__(self, graphs: Graphs) -> None:
        self._graphs, self._steps, self._failed = graphs, 0, False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._fixed: Hashable = None
        self._places: list[int] = []
        self._inputs: list[Tensor] | None = None
        self._lr: Tensor | None = None
        self._value = 0.0

    def __call__(self, step: Step, grads: Sequence[Tensor], lr: float, fixed: Hashable) -> bool:
        """Take the step.

        Args:
            step: The step.
            grads: Gradients, always of the same layouts.
            lr: Learning rate.
            fixed: Everything else that the step depends on; another value drops the graph.

        Returns:
            Whether the step was replayed, so that torch has not seen it.
        """
        if fixed != self._fixed:
            self._graph, self._steps, self._fixed = None, 0, fixed
        self._steps += 1
        if self._steps <= WARM_UP or self._failed or not self._ready(step, grads, lr):
            step(grads, on_device(lr, grads[0].device))
            return False
        assert self._lr is not None and self._graph is not None
        self._graphs.follow()
        if self._inputs is not None:
            torch._foreach_copy_(self._inputs, list(grads))
        if lr != self._value:
            self._lr.fill_(lr)
            self._value = lr
        self._graph.replay()
        return True

    def _ready(self, step: Step, grads: Sequence[Tensor], lr: float) -> bool:
        """Whether there is a graph for such gradients now."""
        places = [grad.data_ptr() for grad in grads]
        if self._graph is not None and (self._inputs is not None or places == self._places):
            return True
        if self._graph is not None:
            self._inputs = [torch.empty_like(grad) for grad in grads]
        self._places = places
        if self._lr is None:
            self._lr, self._value = on_device(lr, grads[0].device), lr
        read, number = self._inputs or list(grads), self._lr
        try:
            self._graph = self._graphs.capture(lambda: step(read, number))
        except RuntimeError:  # of CUDA or its memory: the plain step raises it again or succeeds
            self._graph, self._inputs, self._failed = None, None, True
        return not self._failed


def has_graph(points: Sequence[Tensor]) -> bool:
    """Whether steps of these points, of one kind, become a graph.

    Without a kernel the host must read the number of rounds, or a graph must run all of them.
    """
    small = sum(X.numel() for X in points) <= LARGEST
    return points[0].device.type == "cuda" and has_kernel(points[0]) and small
