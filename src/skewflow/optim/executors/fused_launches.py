"""CUDA weights of one shape and layout, stepped by launches that are prepared once and repeated."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ...errors import NonFiniteGradientError
from ...kernels.block_step import has_kernel, plan
from ...kernels.exact_polar import has_small_kernel
from ...kernels.update import LARGEST_GRADIENT, Update
from ..options import is_fused
from .executor import Context, Executor, Member, Settings

if TYPE_CHECKING:
    from ...kernels._runtime._launch_triton import Launches

NUM_PLACES = 3
"""Sets of gradient addresses that are remembered: training loops alternate between a few."""

_captured: list[Any] = []
"""What CUDA graphs use. It is never freed, since nothing says when a graph is gone."""


class FusedLaunches(Executor):
    """Weights of one shape, dtype, layout and block size, and all that their launches need.

    A step finds its launches by the addresses of the gradients, and does nothing else on the host:
    for many small matrices the host would take longer than the device.
    """

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        super().__init__(members, settings)
        self._params = [member.weight.p for member in members]
        self._indices = [member.index for member in members]
        device = self._params[0].device
        self._replayed = settings.shared.clock.count(device)
        self._squares = self._moments = self._live = self._skipped = None
        if settings.update.beta2 is not None:
            self._squares = self._in_one_piece("exp_avg_sq")
            self._moments = torch.ones_like(self._squares)
        if self.skips:
            self._live = torch.ones(len(members), dtype=torch.int32, device=device)
            self._skipped = self._in_one_piece("skipped")
        # Mapped memory: a kernel reports a bad product here, and no step waits for it.
        self._flags = torch.zeros(1 + len(members), dtype=torch.int32, pin_memory=True)
        self._seen = self._flags.numpy()
        self._places: OrderedDict[tuple[int, ...], Launches] = OrderedDict()

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """The key of weights that the same launches can step; None if no CUDA kernel takes them."""
        weight, state, size = member.weight, member.state, member.choice.size
        gradient, device, update = member.gradient, weight.p.device, settings.update
        drawn_here = size == "dense" or is_fused(settings.options["sampler"])
        if device.type != "cuda" or gradient is None or not drawn_here:
            return None
        if update.angle is not None or update.num_draws > 1:
            return None
        points = weight.points(state)
        tensors = [points]
        tensors += [state["momentum_buffer"]] if "momentum_buffer" in state else []
        tensors += [weight.p] if points is not weight.p else []
        views = [weight.view(t) for t in tensors]
        copied = any(
            view.data_ptr() != t.data_ptr() for view, t in zip(views, tensors, strict=True)
        )
        if copied or gradient.strided is None:
            return None
        if isinstance(size, int):
            reached = has_kernel(views[0], size, update.retraction)
        else:
            reached = has_small_kernel(views[0], member.choice.retraction, update)
        if not reached:
            return None
        layouts = tuple((view.stride(), view.dtype) for view in views)
        alike = (device, size, gradient, layouts, state.get("since"))
        return (*alike, settings.apart(member))

    def complain(self) -> None:
        """Raise for gradients of earlier steps that were not finite."""
        if not self._seen[0]:
            return
        bad = zip(self.members, self._seen[1:], strict=True)
        names = [member.weight.name for member, is_bad in bad if is_bad]
        if not names:  # on its way
            return
        self._seen[:] = 0
        raise NonFiniteGradientError(
            f"the gradient of {', '.join(names)} must be finite: at an earlier step it, or its "
            "product with the weight, was not. The rows concerned were not changed, so the "
            "weight is still orthogonal. Lower the learning rate, clip, or look for the overflow "
            'in the model; nonfinite="skip" leaves such weights out of the step.'
        )

    def prepare(self, context: Context) -> None:
        """Raise what was reported; the kernels check the gradients."""
        self.complain()

    def step(self, context: Context) -> None:
        """Step all weights."""
        capturing, clock = context.capturing, context.clock
        replays = capturing or clock.captured  # the device counts steps, too
        grads = [context.gradients[i] for i in self._indices]
        if self._live is not None:
            self._find_live(grads)
        key = (replays, *[grad.data_ptr() for grad in grads])
        launches = self._places.pop(key, None) or self._moved(grads, replays, capturing)
        if launches is None:
            launches = self._plan(grads, context.update, replays)
        if capturing:  # a table made in a capture is filled only by replays
            _captured.append(launches)
        else:
            self._places[key] = launches
            if len(self._places) > NUM_PLACES:
                self._places.popitem(last=False)
        launches(context.update, clock.done)
        for member in self.members:
            if member.weight.scale != 1:
                member.weight.p.copy_(member.weight.of_master(member.state["master"]))
        increment_version(self._params)

    def _moved(self, grads: Sequence[Tensor], replays: bool, capturing: bool) -> "Launches | None":
        """Reuse the oldest launches for these gradients: making new ones takes much longer.

        A training loop may find its gradients at other addresses in every step.
        """
        if capturing or len(self._places) < NUM_PLACES:
            return None
        oldest = next(iter(self._places))
        if oldest[0] != replays or not self._places[oldest].move(grads):
            return None
        return self._places.pop(oldest)

    def _find_live(self, grads: Sequence[Tensor]) -> None:
        """Decide on the device which weights are stepped, and count the others."""
        norms = torch.stack(torch._foreach_norm(grads, float("inf")))  # type: ignore[arg-type]
        usable = norms <= LARGEST_GRADIENT[norms.dtype]  # false for NaN
        assert self._live is not None and self._skipped is not None
        self._live.copy_(usable)
        self._skipped.add_(~usable)

    def _plan(self, grads: Sequence[Tensor], update: Update, replays: bool) -> "Launches":
        from ...kernels._runtime._operands_triton import Operands

        Xs, Gs, Ms, Ps = [], [], [], []
        for member, grad in zip(self.members, grads, strict=True):
            weight, state = member.weight, member.state
            X, M = weight.matrices(state)
            Xs.append(X)
            Gs.append(weight.view(grad))
            Ms += [] if M is None else [M]
            Ps += [weight.view(weight.p)] if "master" in state and weight.scale == 1 else []
        operands = Operands(
            Xs,
            Gs,
            Ms or None,
            Ps or None,
            [member.weight.stream for member in self.members],
            self._replayed if replays else None,
            self._flags,
            self._live,
            self._skipped,
            self._moments,
            self._squares,
            self.members[0].state.get("since", 0),
        )
        size = self.members[0].choice.size
        if isinstance(size, int):
            return plan(operands, update, size)
        from ...kernels.exact_polar._small_triton import plan_small_polar

        return plan_small_polar(operands, update)

    def _in_one_piece(self, name: str) -> Tensor:
        """The states' tensors of this name stacked for the kernel; each state gets its part.

        If they are already all the parts of one tensor, in order, they are not copied: a CUDA graph
        that was captured before continues to use the same memory.
        """
        parts = [member.state[name] for member in self.members]
        whole = parts[0]._base
        known = whole is not None and whole.shape == (len(parts), *parts[0].shape)
        if not known or any(
            p.data_ptr() != own.data_ptr() for p, own in zip(parts, whole, strict=True)
        ):
            whole = torch.stack(parts)
        for member, part in zip(self.members, whole, strict=True):
            member.state[name] = part
        return whole
