"""A warning, once for each weight, where blocks of the unbiased law turn a plane too far."""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from warnings import warn

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import _validate
from .._typing import MatrixBlocks
from ..kernels._runtime.torch_threads import few_threads
from ..kernels.rotate_blocks.reference import divide_blocks
from ..kernels.row_moments.reference import row_moments
from ..kernels.update import Update, direction
from ..tournaments.partitions import edge_probability
from .executors.executor import Context, Executor, Member
from .executors.gathered import Gathered
from .executors.sampled_blocks import SampledBlocks
from .executors.sharded import Sharded
from .weight import Weight

MOST = 1.0
"""Largest angle, in radians, without a warning. The generator is a first-order model: it says
nothing about points further away."""

SELDOM = 256
"""Most steps between two checks; at the beginning steps 1, 2, 4, 8, ... are checked."""

SQUARINGS = 6
"""Squarings of a block's Gram matrix that bound its spectral norm, within 1.4 % at 64 rows."""

INSIDE = tuple(f"{Path(module).parent}{os.sep}" for module in (torch.__file__, _validate.__file__))
"""The folders of torch and of this library."""

CHUNK = 2**20
"""Entries of a weight that a check copies at a time, 4 MiB in float32; of a larger weight a
sixteenth, so that a check launches few kernels."""


@dataclass(frozen=True)
class Turned:
    """A weight, and the step that turns it."""

    weight: Weight
    block_size: int
    lr: float


class LargeAngles:
    """Checks the angles of steps on the device of the weight.

    On CUDA the result goes to pinned memory and is read at the next check, so no step waits for it.
    """

    def __init__(self) -> None:
        self._named: set[int] = set()
        """The streams of the weights that a warning has named."""
        self._sent: list[tuple[Turned, Tensor, torch.cuda.Event]] = []

    def read(self) -> None:
        """Warn of weights on CUDA that the step of the last check turned too far."""
        sent, self._sent = self._sent, []
        for turned, angle, event in sent:
            event.synchronize()
            self._warn(turned, float(angle))

    def check(self, work: Iterable[tuple[Executor, Context]]) -> None:
        """Warn of weights that the prepared step will turn too far; on CUDA `read` does."""
        for outer, given in work:
            whole = outer.whole if isinstance(outer, Gathered) else None
            executor, context = (outer, given) if whole is None else whole
            for member in executor.members:
                size, named = member.choice.size, member.weight.stream in self._named
                unbiased = context.update.angle is None and member not in executor.left_out
                if not unbiased or named or not isinstance(size, int):
                    continue
                with few_threads(member.weight.p.numel()):
                    angle = angle_of(executor, member, context)
                turned = Turned(member.weight, size, float(context.options["lr"]))
                if angle.device.type == "cuda":
                    self._send(turned, angle)
                else:
                    self._warn(turned, float(angle))

    def _send(self, turned: Turned, angle: Tensor) -> None:
        pinned = torch.empty((), dtype=angle.dtype, pin_memory=True)
        pinned.copy_(angle, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(angle.device))
        self._sent.append((turned, pinned, event))

    def _warn(self, turned: Turned, angle: float) -> None:
        if not MOST < angle < float("inf"):
            return
        self._named.add(turned.weight.stream)
        warn(
            f"a step turns a plane of {turned.weight.name} by {angle:.3g} radians: blocks of "
            f"{turned.block_size} of its {turned.weight.d} rows turn further than exact steps at "
            f"the same lr. lr={turned.lr / angle:.2g} turns none by more than one radian; the lr "
            "of AngleSGD is an angle, for blocks of any size.",
            stacklevel=_depth_of_the_caller(),
        )


def _depth_of_the_caller() -> int:
    """The `stacklevel` of the line outside of torch and this library that takes the step."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back and frame.f_code.co_filename.startswith(INSIDE):
        frame, depth = frame.f_back, depth + 1
    return depth


def angle_of(executor: Executor, member: Member, context: Context) -> Float[Tensor, ""]:
    """The largest angle by which a step turns a weight, or a bound on it of at most `MOST`."""
    lr, size = context.update.lr_of_draw, member.choice.size
    assert isinstance(size, int)
    if isinstance(executor, SampledBlocks):
        estimates = [blocks for *_, blocks in executor.estimates]
    elif isinstance(executor, Sharded):
        scale = float(1 / edge_probability(member.weight.d, size))
        estimates = [tuple(scale * b for b in blocks) for blocks in executor.blocks(member)]
    else:
        estimates = list(drawn_blocks(member, context))
    angles = [largest_angle(lr * b) for blocks in estimates for b in blocks if b.numel()]
    return torch.stack(angles).amax() if angles else torch.zeros(())


def largest_angle(blocks: Float[Tensor, "l s s"]) -> Float[Tensor, ""]:
    r"""The largest spectral norm of skew blocks, or a bound on it of at most `MOST`.

    With $P = A^\top A$ and m = `SQUARINGS`, $(\|P^{2^m}\|_F / \sqrt2)^{1/2^m}$ is at least the
    largest eigenvalue of P, which is double, and for s = 64 at most 2.8 % above it.
    """
    norm = torch.linalg.matrix_norm(blocks)
    bound = norm / 2**0.5  # planes come in pairs
    on_host = blocks.device.type != "cuda"
    if blocks.shape[-1] < 4 or (on_host and not bound.amax() > MOST):
        return bound.amax()
    tiny = torch.finfo(blocks.dtype).tiny
    A = blocks / norm.clamp(min=tiny)[:, None, None]
    P, log, part = A.mT @ A, torch.zeros_like(norm), 1.0
    for _ in range(SQUARINGS):
        size = torch.linalg.matrix_norm(P).clamp(min=tiny)
        P, log, part = P / size[:, None, None], log + part * size.log(), part / 2
        P = P @ P
    log = log + part * (torch.linalg.matrix_norm(P).clamp(min=tiny) / 2**0.5).log()
    return (norm * (log / 2).exp()).amax()


def drawn_blocks(member: Member, context: Context) -> Iterable[MatrixBlocks]:
    """The first estimates of the generators that the kernels will draw, one for each matrix."""
    from ..kernels.permutation.partition_cpu import partition_at  # numba, on use

    weight, state, size = member.weight, member.state, member.choice.size
    assert isinstance(size, int)
    update, device = context.update, weight.p.device
    (X, M), G = weight.matrices(state), weight.view(context.gradients[member.index])
    moments: Float[Tensor, "n d"] | None = None
    if update.beta2 is not None:
        taken = context.clock.taken(state, device)
        moments = row_moments(state["exp_avg_sq"].clone(), G, taken, update)
    time = context.clock.time(device) * update.num_draws
    scale = float(1 / edge_probability(weight.d, size))
    for b, X_b in enumerate(X):
        partition = partition_at(weight.d, size, update, weight.stream + b, time, device)
        given = X_b, G[b], None if M is None else M[b]
        blocks = tuple(_blocks_of_rows(rows, *given, update) for rows in partition.blocks)
        if moments is not None:
            blocks = divide_blocks(blocks, partition, moments[b])
        yield tuple(scale * block for block in blocks)


def _blocks_of_rows(
    rows: Int[Tensor, "l s"],
    X: Float[Tensor, "d k"],
    G: Float[Tensor, "d k"],
    M: Float[Tensor, "d k"] | None,
    update: Update,
) -> Float[Tensor, "l s s"]:
    """The generator inside blocks of rows, with a copy of few rows at a time.

    A gradient that is not finite gives blocks that are not: the kernels report it.
    """
    l, s = rows.shape
    products = X.new_empty(l, s, s)
    few = max(1, max(CHUNK, X.numel() // 16) // (s * X.shape[-1]))
    for start in range(0, l, few):
        part = rows[start : start + few]
        D, _ = direction(G[part].to(X.dtype), None if M is None else M[part], update)
        products[start : start + few] = D.to(X.dtype) @ X[part].mT
    return products - products.mT
