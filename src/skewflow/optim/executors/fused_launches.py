"""CUDA weights of one shape and layout, stepped together by launches that are made once."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ...errors import NonFiniteGradientError
from ...kernels.block_step import plan
from ...kernels.update import LARGEST_GRADIENT, Update
from ..weight import Weight

if TYPE_CHECKING:
    from ...kernels._runtime._launch_triton import Launches

NUM_PLACES = 3
"""Sets of gradient addresses remembered: training loops take turns between a few."""

_captured: list[Any] = []
"""What CUDA graphs use; nobody tells us when a graph is gone."""


class Bucket:
    """Weights with the same shape, dtypes, strides and block size, and all their launches need.

    A step looks up its launches by the addresses of the gradients, and has nothing else to do on
    the host, where a step of many small matrices spends its time.

    Args:
        weights: The weights; all on one CUDA device.
        states: Their states.
        block_size: s; "dense" for exact steps to the nearest point.
        replayed: The device's count of replayed steps.
        skip: Leave out weights whose gradient is not finite, and count them.
        moments: Their planes are divided by second moments, kept in the states.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        states: Sequence[dict[str, Any]],
        block_size: int | str,
        replayed: Tensor,
        *,
        skip: bool,
        moments: bool,
    ) -> None:
        self.weights, self._states = list(weights), list(states)
        self._params = [weight.p for weight in weights]
        self.block_size, self._replayed = block_size, replayed
        device = replayed.device
        self._squares = self._moments = None
        if moments:  # in one piece for the kernel, of which each state has its part
            self._squares = _in_one_piece([state["exp_avg_sq"] for state in states])
            for state, squares in zip(states, self._squares, strict=True):
                state["exp_avg_sq"] = squares
            self._moments = torch.ones_like(self._squares)
        self._live = self._skipped = None
        if skip:
            self._live = torch.ones(len(weights), dtype=torch.int32, device=device)
            self._skipped = _in_one_piece([state["skipped"] for state in states])
            for state, skipped in zip(states, self._skipped, strict=True):
                state["skipped"] = skipped
        # Mapped memory: a kernel that meets a bad product writes here, and no step waits for it.
        self._flags = torch.zeros(1 + len(weights), dtype=torch.int32, pin_memory=True)
        self._seen = self._flags.numpy()
        self._places: OrderedDict[tuple[int, ...], Launches] = OrderedDict()

    def complain(self) -> None:
        """Raise if a gradient of an earlier step was not finite."""
        if not self._seen[0]:
            return
        names = [w.name for w, bad in zip(self.weights, self._seen[1:], strict=True) if bad]
        if not names:  # on its way
            return
        self._seen[:] = 0
        raise NonFiniteGradientError(
            f"the gradient of {', '.join(names)} must be finite: at an earlier step it, or its "
            "product with the weight, was not. The rows it touched were left as they were, so the "
            "weight is still orthogonal. Lower the learning rate, clip, or look for the overflow "
            'in the model; nonfinite="skip" leaves such weights out of the step.'
        )

    def step(self, update: Update, done: int, capturing: bool, replays: bool) -> None:
        """Step all weights.

        Args:
            update: What the step does.
            done: Steps that the host has counted.
            capturing: The step is being captured in a CUDA graph.
            replays: There are graphs, so that the device counts, too.
        """
        replays |= capturing
        grads = [p.grad for p in self._params]
        if self._live is not None:
            self._look(grads)
        key = (replays, *[grad.data_ptr() for grad in grads])  # type: ignore[union-attr]
        launches = self._places.pop(key, None) or self._moved(grads, replays, capturing)
        if launches is None:
            launches = self._plan(grads, update, replays)
        if capturing:  # a table made in a capture is filled only by replays
            _captured.append(launches)
        else:
            self._places[key] = launches
            if len(self._places) > NUM_PLACES:
                self._places.popitem(last=False)
        launches(update, done)
        increment_version(self._params)

    def _moved(
        self, grads: Sequence[Tensor | None], replays: bool, capturing: bool
    ) -> "Launches | None":
        """The launches used longest ago, with these gradients: making new ones takes much longer.

        A training loop may find its gradients at other addresses in every step.
        """
        if capturing or len(self._places) < NUM_PLACES:
            return None
        oldest = next(iter(self._places))
        if oldest[0] != replays or not self._places[oldest].move(grads):  # type: ignore[arg-type]
            return None
        return self._places.pop(oldest)

    def _look(self, grads: Sequence[Tensor | None]) -> None:
        """Find out, on the device, which weights are to be stepped; count the others."""
        norms = torch.stack(torch._foreach_norm(grads, float("inf")))  # type: ignore[arg-type]
        usable = norms <= LARGEST_GRADIENT[norms.dtype]  # which NaN is not
        assert self._live is not None
        self._live.copy_(usable)
        assert self._skipped is not None
        self._skipped.add_(~usable)

    def _plan(self, grads: Sequence[Tensor | None], update: Update, replays: bool) -> "Launches":
        from ...kernels._runtime._operands_triton import Operands

        Xs, Gs, Ms, Ps = [], [], [], []
        for weight, state, grad in zip(self.weights, self._states, grads, strict=True):
            assert grad is not None
            Xs.append(weight.view(weight.points(state)))
            Gs.append(weight.view(grad))
            if "momentum_buffer" in state:
                Ms.append(weight.view(state["momentum_buffer"]))
            if "master" in state:
                Ps.append(weight.view(weight.p))
        operands = Operands(
            Xs,
            Gs,
            Ms or None,
            Ps or None,
            [weight.stream for weight in self.weights],
            self._replayed if replays else None,
            self._flags,
            self._live,
            self._skipped,
            self._moments,
            self._squares,
            self._states[0].get("since", 0),
        )
        if isinstance(self.block_size, int):
            return plan(operands, update, self.block_size)
        from ...kernels.exact_polar._small_triton import plan_small_polar

        return plan_small_polar(operands, update)


def _in_one_piece(parts: Sequence[Tensor]) -> Tensor:
    """The parts stacked: as they are, if they are all the parts of one tensor, in order.

    A CUDA graph that was captured before goes on with the same memory then.
    """
    whole = parts[0]._base
    if whole is None or whole.shape != (len(parts), *parts[0].shape):
        return torch.stack(list(parts))
    if all(part.data_ptr() == own.data_ptr() for part, own in zip(parts, whole, strict=True)):
        return whole
    return torch.stack(list(parts))
