"""Weights of one shape that take the exact step together, as one batch."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteGradientError
from ..kernels.row_moments.reference import row_moments
from ..kernels.update import LARGEST_GRADIENT, Update, direction
from ._dense import dense_step
from ._polar import polar_step
from ._weights import Weight


class Lot:
    """Weights with the same matrices (n, d, k) on one device, whose block size is "dense".

    A network has many small weights of few shapes: one batched exponential costs the device little
    more than one, and the host no more.

    Args:
        weights: The weights.
        states: Their states.
        skip: Leave out weights whose gradient is not finite, and count them.
    """

    def __init__(
        self, weights: Sequence[Weight], states: Sequence[dict[str, Any]], *, skip: bool
    ) -> None:
        self.weights, self._states, self._skip = list(weights), list(states), skip
        device = weights[0].p.device
        self._bad = torch.zeros(len(weights), dtype=torch.bool, device=device)
        pinned = device.type == "cuda"
        self._seen = torch.zeros(len(weights), dtype=torch.bool, pin_memory=pinned)
        self._told = self._seen.numpy()  # the same memory, which is read faster

    def complain(self) -> None:
        """Raise if a gradient of an earlier step, on CUDA, was not finite."""
        if not self._told.any():
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
        store: Callable[[Weight, Tensor], None],
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
        members = [(weight, state) for weight, state in pairs if weight not in left_out]
        if not members:
            return
        weights, states = zip(*members, strict=True)
        n = weights[0].num_matrices
        points = [weight.view(weight.points(state)) for weight, state in members]
        G = _batch([weight.view(weight.p.grad) for weight in weights])
        w = None
        if update.beta2 is not None:
            steps = time()
            moved = [
                row_moments(state["exp_avg_sq"], part, steps - state["since"], update)
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
            Y, new = polar_step(X, D, update.lr, tangent=new is not None)
        else:
            new = None if new is None else _tangent_part(X, new)
            Y = dense_step(X, D, update.lr, retraction, w)
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
        num = len(self.weights)  # on CUDA none is left out on the host
        largest = torch.linalg.vector_norm(D.reshape(num, -1), ord=float("inf"), dim=-1)
        return largest <= LARGEST_GRADIENT[D.dtype]  # which NaN is not

    def _reported(self, X: Tensor, Y: Tensor, finite: Tensor) -> Tensor:
        """The stepped points, or the old ones where a product overflowed; the host is told."""
        good = self._finite(Y)
        finite = finite & good
        if self._skip:
            for state, fine in zip(self._states, finite, strict=True):
                state["skipped"] += ~fine
        else:
            self._seen.copy_(self._bad.logical_or_(~finite), non_blocking=True)
        return torch.where(self._each(good, Y), Y, X)

    def _finite(self, matrices: Tensor) -> Tensor:
        """For each weight; on CUDA none is left out on the host."""
        return torch.isfinite(matrices).reshape(len(self.weights), -1).all(-1)

    def _each(self, weights: Tensor, matrices: Tensor) -> Tensor:
        """From one value a weight to one a matrix."""
        return weights.repeat_interleave(len(matrices) // len(self.weights))[:, None, None]


def _tangent_part(X: Tensor, M: Tensor) -> Tensor:
    """`tangent_project`, which would wait for the device to check what it is given."""
    S = X.mT @ M
    return torch.baddbmm(M, X, S.add(S.mT), alpha=-0.5)


def _batch(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as one; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _put(tensors: list[Tensor], batch: Tensor) -> None:
    """The inverse of `_batch`, into tensors that are there."""
    if len(tensors) == 1:
        tensors[0].copy_(batch)
    else:
        torch._foreach_copy_(tensors, list(torch.split(batch, len(tensors[0]))))
