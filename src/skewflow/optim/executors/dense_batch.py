"""Exact steps in a batch: weights of one shape are stacked and stepped at once."""

from collections.abc import Hashable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ...errors import NonFiniteGradientError
from ...geometry.precision import full_precision
from ...kernels._runtime.devices import on_device
from ...kernels.exact_polar import polar_step
from ...kernels.exact_step import exact_step
from ...kernels.polish import polish_
from ...kernels.row_moments.reference import row_moments
from ...kernels.tangent import tangent_part
from ...kernels.turn_by_angle.exact import direction_by_angle
from ...kernels.update import LARGEST_GRADIENT, direction
from ..drift import POLISH_EVERY, accumulates_rounding
from ..gradient import unusable_gradient
from .dense_matrix import DenseMatrix
from .executor import STACKED, Context, Executor, Member, Settings
from .graph_replay import GraphReplay, has_graph


class DenseBatch(Executor):
    """Weights with the same matrices (n, d, k) on one device.

    A network has many small weights of few shapes: one batched step costs the device little more
    than the step of one weight, and the host no more. If the step runs in CUDA kernels without the
    host and is not large, it is replayed as one CUDA graph from the third step on.
    """

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        super().__init__(members, settings)
        self._params = [member.weight.p for member in members]
        self._retraction = members[0].choice.retraction
        self._rounds = accumulates_rounding(members[0].weight, self._retraction)
        points, device = [m.weight.points(m.state) for m in members], self._params[0].device
        self._replay: GraphReplay | None = None
        if has_graph(points) and settings.update.beta2 is None and self._retraction != "cayley":
            self._replay = GraphReplay(settings.shared.graphs(device))
        self._on_cuda = device.type == "cuda"
        self._bad = torch.zeros(len(members), dtype=torch.bool, device=device)
        self._seen = torch.zeros(len(members), dtype=torch.bool, pin_memory=self._on_cuda)
        self._seen_fast = memoryview(self._seen.numpy().data)  # the same memory, read faster

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """The key of weights that form one batch: equal kind, not large."""
        weight, state = member.weight, member.state
        if member.gradient is None or member.choice.size != "dense":
            return None
        points, large = weight.points(state), weight.p.numel() > STACKED
        separate = id(member) if large else settings.apart(member)
        kinds = points.device, points.dtype, member.gradient.dtype, weight.view.matrices
        return (*kinds, "momentum_buffer" in state, separate)

    @classmethod
    def make(cls, members: Sequence[Member], settings: Settings) -> Executor:
        """The executor of weights of equal key; a single matrix on a CPU has a faster executor."""
        if len(members) == 1 and DenseMatrix.key(members[0], settings) is not None:
            return DenseMatrix(members, settings)
        return cls(members, settings)

    def complain(self) -> None:
        """Raise for gradients of earlier steps, on CUDA, that were not finite."""
        if True not in self._seen_fast:
            return
        bad = zip(self.members, self._seen, strict=True)
        names = [member.weight.name for member, is_bad in bad if is_bad]
        self._bad.zero_()
        self._seen.zero_()
        raise NonFiniteGradientError(
            f"the gradient of {', '.join(names)} must be finite: at an earlier step it was not, "
            "and the step was not taken. Lower the learning rate, clip, or look for the overflow "
            "in the model."
        )

    def prepare(self, context: Context) -> None:
        """Raise what was reported; on a CPU check the gradients."""
        from ...kernels._runtime.finite import is_usable  # numba, on use

        self.complain()
        if context.capturing and context.update.beta2 is not None:
            raise RuntimeError(
                "an exact step with second moments cannot be captured in a CUDA graph: its "
                "corrections need the count of steps on the host. Use a block size, or FlowSGD."
            )
        if self._on_cuda:
            return
        grads = context.gradients
        self.left_out = [m for m in self.members if not is_usable(grads[m.index], by_torch=True)]
        if self.left_out and not self.skips:
            raise unusable_gradient(self.left_out[0].weight, grads[self.left_out[0].index])

    def step(self, context: Context) -> None:
        """Step all weights but those left out."""
        members = self.members
        if self.left_out:
            for member in self.left_out:
                member.state["skipped"] += 1
            members = [member for member in members if member not in self.left_out]
            if not members:
                return
        update, grads = context.update, [context.gradients[m.index] for m in members]
        move = partial(self._move, members, context)
        if self._replay is not None and not context.capturing:
            precision = torch.backends.cuda.matmul.fp32_precision
            fixed = (update.momentum, update.nesterov, update.maximize, precision)
            if self._replay(move, grads, update.lr, fixed):
                increment_version(self._params)
        else:
            move(grads, on_device(update.lr, grads[0].device) if self._on_cuda else update.lr)
        if self._on_cuda and not self.skips:
            # Outside the graph: pinned memory cannot track how long the replays use it.
            self._seen.copy_(self._bad, non_blocking=True)
        if self._rounds and not context.capturing:
            self._polish(members)

    def _move(
        self,
        members: Sequence[Member],
        context: Context,
        grads: Sequence[Tensor],
        lr: float | Tensor,
    ) -> None:
        """Take the step, given the gradients and the learning rate, which is a tensor on CUDA."""
        update = context.update
        points, buffers = zip(*(m.weight.matrices(m.state) for m in members), strict=True)
        G = _stack([m.weight.view(grad) for m, grad in zip(members, grads, strict=True)])
        w = None
        if update.beta2 is not None:
            parts = torch.split(G, len(points[0]))
            moved = []
            for member, part in zip(members, parts, strict=True):
                taken = context.clock.taken(member.state, G.device)
                moved.append(row_moments(member.state["exp_avg_sq"], part, taken, update))
            w = _stack(moved)
        X, M = _stack(points), None if buffers[0] is None else _stack(buffers)
        D, new = direction(G.to(X.dtype), M, update)
        finite = None
        if self._on_cuda:
            finite = self._usable(D)
            D = torch.where(self._each(finite, D), D, 0)
        # The normal part of a momentum has no effect here, but is not normal at the next point.
        plain = w is None and update.angle is None
        if self._retraction == "polar" and plain and not update.nesterov:
            Y, new = polar_step(X, D, lr, tangent=new is not None)
        else:
            with full_precision():
                new = None if new is None else tangent_part(X, new)
            if update.angle is not None:
                D = direction_by_angle(X, D, update.angle)
            Y = exact_step(X, D, lr, self._retraction, w)
        if new is not None:
            if finite is not None:
                assert M is not None
                new = torch.where(self._each(finite, D), new, M)
            _unstack(buffers, new)
        _unstack(points, Y if finite is None else self._reported(X, Y, finite))
        for member, point, buffer in zip(members, points, buffers, strict=True):
            member.weight.write_back(member.state, point, buffer)

    def _polish(self, members: Sequence[Member]) -> None:
        """Count the steps, and polish the weights that have taken many."""
        due = []
        for member in members:
            member.state["turns"] = member.state.get("turns", 0) + 1
            if member.state["turns"] % POLISH_EVERY == 0:
                due.append(member)
        if due:
            points = [member.weight.matrices(member.state)[0] for member in due]
            X = _stack(points)
            polish_(X)
            _unstack(points, X)
            for member, point in zip(due, points, strict=True):
                member.weight.write_back(member.state, point)

    def _usable(self, D: Tensor) -> Tensor:
        """For each weight, whether no product of its direction overflows."""
        return self._largest(D) <= LARGEST_GRADIENT[D.dtype]  # false for NaN

    def _reported(self, X: Tensor, Y: Tensor, finite: Tensor) -> Tensor:
        """The stepped points, or the old ones where a product overflowed; records which."""
        good = self._largest(Y) < float("inf")
        bad = (finite & good).logical_not_()
        if self.skips:
            skipped = [member.state["skipped"] for member in self.members]
            torch._foreach_add_(skipped, bad.to(torch.int64).unbind())
        else:
            self._bad.logical_or_(bad)
        return torch.where(self._each(good, Y), Y, X)

    def _largest(self, matrices: Tensor) -> Tensor:
        """The largest entry of each weight; on CUDA none is left out on the host."""
        apart = matrices.view(len(self.members), -1, *matrices.shape[1:])
        return torch.linalg.vector_norm(apart, ord=float("inf"), dim=(1, 2, 3))

    def _each(self, weights: Tensor, matrices: Tensor) -> Tensor:
        """Repeat one value per weight into one per matrix."""
        n = len(matrices) // len(self.members)
        return (weights.repeat_interleave(n) if n > 1 else weights)[:, None, None]


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as one; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _unstack(tensors: Sequence[Tensor], batch: Tensor) -> None:
    """The inverse of `_stack`, into tensors that exist."""
    if len(tensors) == 1:
        tensors[0].copy_(batch)
    else:
        torch._foreach_copy_(list(tensors), list(torch.split(batch, len(tensors[0]))))
