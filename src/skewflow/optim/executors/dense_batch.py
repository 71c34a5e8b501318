"""Weights of one shape that take the exact step together, as one batch."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ...errors import NonFiniteError, NonFiniteGradientError
from ...geometry.precision import full_precision
from ...kernels._runtime.devices import on_device
from ...kernels._runtime.graphs import Graphs, is_capturing
from ...kernels.exact_polar import polar_step
from ...kernels.exact_step import exact_step
from ...kernels.polish import polish_
from ...kernels.row_moments.reference import row_moments
from ...kernels.tangent import tangent_part
from ...kernels.update import LARGEST_GRADIENT, Update, direction
from ..drift import Store, is_due
from ..weight import Weight, steps_taken
from .dense_matrix import single_of
from .graph_replay import Replayed, has_graph


class Lot:
    """Weights with the same matrices (n, d, k) on one device, whose block size is "dense".

    A network has many small weights of few shapes: one batched exponential costs the device little
    more than one, and the host no more. What CUDA kernels can do without the host, and is not
    large, is one CUDA graph from the third step on: then the host hardly counts at all.

    Args:
        weights: The weights.
        states: Their states.
        graphs: Makes the CUDA graph.
        skip: Leave out weights whose gradient is not finite, and count them.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        states: Sequence[dict[str, Any]],
        graphs: Graphs,
        *,
        skip: bool,
    ) -> None:
        self.weights, self._states, self._skip = list(weights), list(states), skip
        device = weights[0].p.device
        self._params = [weight.p for weight in weights]
        points = [weight.points(state) for weight, state in zip(weights, states, strict=True)]
        self._replayed = Replayed(graphs) if has_graph(points) else None
        self._bad = torch.zeros(len(weights), dtype=torch.bool, device=device)
        pinned = device.type == "cuda"
        self._seen = torch.zeros(len(weights), dtype=torch.bool, pin_memory=pinned)
        self._told = memoryview(self._seen.numpy().data)  # the same memory, which is read faster
        self._single = single_of(weights, states)

    def complain(self) -> None:
        """Raise if a gradient of an earlier step, on CUDA, was not finite."""
        if True not in self._told:
            return
        names = [w.name for w, bad in zip(self.weights, self._seen, strict=True) if bad]
        self._bad.zero_()
        self._seen.zero_()
        raise NonFiniteGradientError(
            f"the gradient of {', '.join(names)} must be finite: at an earlier step it was not, "
            "and the step was not taken. Lower the learning rate, clip, or look for the overflow "
            "in the model."
        )

    def step(
        self,
        update: Update,
        retraction: Any,
        time: Callable[[], int],
        left_out: Collection[Weight],
        store: Store,
    ) -> None:
        """Step all weights but those left out.

        Args:
            update: The numbers of the step.
            retraction: "exp", "cayley" or "polar".
            time: Steps done before, on the host.
            left_out: Weights that stay as they are.
            store: Brings stepped points into their parameter, if they are a copy.
        """
        pairs = zip(self.weights, self._states, strict=True)
        members = [pair for pair in pairs if pair[0] not in left_out]
        if not members:
            return
        try:
            if self._single is not None and self._single.takes(update, retraction):
                self._single.step(update, retraction, time)
            else:
                self._step_together(members, update, retraction, time, store)
        except NonFiniteError:
            for weight in self.weights:
                weight.nearest()  # raises an error that names the weight
            raise
        due = [pair for pair in members if is_due(*pair, retraction)]
        if due:
            points = [weight.view(weight.points(state)) for weight, state in due]
            X = _batch(points)
            polish_(X)
            _put(points, X)
            for (weight, _), point in zip(due, points, strict=True):
                store(weight, point)

    def _step_together(
        self,
        members: Sequence[tuple[Weight, dict[str, Any]]],
        update: Update,
        retraction: Any,
        time: Callable[[], int],
        store: Store,
    ) -> None:
        """All of them as one batch, on CUDA as a graph where that can be."""
        grads: list[Any] = [weight.p.grad for weight, _ in members]

        def move(Gs: Sequence[Tensor], lr: float | Tensor) -> None:
            self._move(members, Gs, lr, update, retraction, time, store)

        on_cuda = grads[0].device.type == "cuda"
        if self._can_replay(update, retraction):
            assert self._replayed is not None
            precision = torch.backends.cuda.matmul.fp32_precision
            fixed = (update.momentum, update.nesterov, update.maximize, retraction, precision)
            if self._replayed(move, grads, update.lr, fixed):
                increment_version(self._params)
        else:
            move(grads, on_device(update.lr, grads[0].device) if on_cuda else update.lr)
        if on_cuda and not self._skip:
            # Not in the graph: pinned memory would not know until when the replays use it.
            self._seen.copy_(self._bad, non_blocking=True)

    def _can_replay(self, update: Update, retraction: str) -> bool:
        """Whether the step is the same for the host at any time, and nobody else captures it."""
        if self._replayed is None or update.beta2 is not None or retraction == "cayley":
            return False
        return not is_capturing()

    def _move(
        self,
        members: Sequence[tuple[Weight, dict[str, Any]]],
        grads: Sequence[Tensor],
        lr: float | Tensor,
        update: Update,
        retraction: Any,
        time: Callable[[], int],
        store: Store,
    ) -> None:
        """The step, given the gradients and the learning rate, on CUDA as a tensor."""
        weights, states = zip(*members, strict=True)
        n = weights[0].num_matrices
        points = [weight.view(weight.points(state)) for weight, state in members]
        G = _batch([weight.view(grad) for weight, grad in zip(weights, grads, strict=True)])
        w = None
        if update.beta2 is not None:
            steps = time()
            moved = [
                row_moments(state["exp_avg_sq"], part, steps_taken(state, steps), update)
                for state, part in zip(states, torch.split(G, n), strict=True)
            ]
            w = _batch(moved)
        X, M = _batch(points), None
        if "momentum_buffer" in states[0]:
            buffers = [weight.view(state["momentum_buffer"]) for weight, state in members]
            M = _batch(buffers)
        D, new = direction(G.to(X.dtype), M, update)
        finite = None
        if X.device.type == "cuda":  # elsewhere the gradients were looked at before the step
            finite = self._usable(D)
            D = torch.where(self._each(finite, D), D, 0)
        # The normal part of a momentum gives no force here, but would from the next point's view.
        if retraction == "polar" and w is None and not update.nesterov:
            Y, new = polar_step(X, D, lr, tangent=new is not None)
        else:
            with full_precision():
                new = None if new is None else tangent_part(X, new)
            Y = exact_step(X, D, lr, retraction, w)
        if new is not None:
            if finite is not None:
                assert M is not None
                new = torch.where(self._each(finite, D), new, M)
            _put(buffers, new)
            for weight, state, buffer in zip(weights, states, buffers, strict=True):
                if buffer.data_ptr() != state["momentum_buffer"].data_ptr():  # it was a copy
                    state["momentum_buffer"].copy_(weight.view.restore(buffer))
        if finite is not None:
            Y = self._reported(X, Y, finite)
        _put(points, Y)
        for weight, point in zip(weights, points, strict=True):
            store(weight, point)

    def _usable(self, D: Tensor) -> Tensor:
        """For each weight, whether no product of its direction overflows."""
        return self._largest(D) <= LARGEST_GRADIENT[D.dtype]  # which NaN is not

    def _reported(self, X: Tensor, Y: Tensor, finite: Tensor) -> Tensor:
        """The stepped points, or the old ones where a product overflowed; notes which."""
        good = self._largest(Y) < float("inf")
        bad = (finite & good).logical_not_()
        if self._skip:
            skipped = [state["skipped"] for state in self._states]
            torch._foreach_add_(skipped, bad.to(torch.int64).unbind())
        else:
            self._bad.logical_or_(bad)
        return torch.where(self._each(good, Y), Y, X)

    def _largest(self, matrices: Tensor) -> Tensor:
        """The largest entry of each weight; on CUDA none is left out on the host."""
        apart = matrices.view(len(self.weights), -1, *matrices.shape[1:])
        return torch.linalg.vector_norm(apart, ord=float("inf"), dim=(1, 2, 3))

    def _each(self, weights: Tensor, matrices: Tensor) -> Tensor:
        """From one value a weight to one a matrix."""
        n = len(matrices) // len(self.weights)
        return (weights.repeat_interleave(n) if n > 1 else weights)[:, None, None]


def _batch(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as one; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _put(tensors: list[Tensor], batch: Tensor) -> None:
    """The inverse of `_batch`, into tensors that are there."""
    if len(tensors) == 1:
        tensors[0].copy_(batch)
    else:
        torch._foreach_copy_(tensors, list(torch.split(batch, len(tensors[0]))))
