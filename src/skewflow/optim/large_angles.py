"""A warning, once for each weight, where blocks of the unbiased law turn a plane too far."""

from collections.abc import Iterable
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor

from .._typing import MatrixBlocks
from ..kernels._runtime.torch_threads import few_threads
from ..kernels.rotate_blocks.reference import divide_blocks
from ..kernels.row_moments.reference import row_moments
from ..kernels.turn_by_angle.reference import drawn_partition
from ..kernels.update import direction
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.partitions import edge_probability
from .executors.executor import Context, Executor, Member
from .executors.gathered import Gathered
from .executors.sampled_blocks import SampledBlocks
from .executors.sharded import Sharded

MOST = 1.0
"""Largest angle, in radians, without a warning. The generator is a first-order model: it says
nothing about points further away."""

SELDOM = 256
"""Most steps between two checks; at the beginning steps 1, 2, 4, 8, ... are checked."""


class LargeAngles:
    """Checks the angles of a step on the device of the weight, and waits for the result."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        """The streams of the weights that a warning has named."""

    def check(self, work: Iterable[tuple[Executor, Context]]) -> None:
        """Warn of weights that the prepared step will turn too far."""
        for outer, given in work:
            whole = outer.whole if isinstance(outer, Gathered) else None
            executor, context = (outer, given) if whole is None else whole
            for member in executor.members:
                unbiased = context.update.angle is None and isinstance(member.choice.size, int)
                left_out = member in executor.left_out
                if unbiased and member.weight.stream not in self._told and not left_out:
                    with few_threads(member.weight.p.numel()):
                        self._compare(executor, member, context)

    def _compare(self, executor: Executor, member: Member, context: Context) -> None:
        lr = context.update.lr_of_draw
        if isinstance(executor, SampledBlocks):
            estimates = [blocks for *_, blocks in executor.estimates]
        elif isinstance(executor, Sharded):
            assert isinstance(member.choice.size, int)
            scale = float(1 / edge_probability(member.weight.d, member.choice.size))
            estimates = [tuple(scale * b for b in blocks) for blocks in executor.blocks(member)]
        else:
            estimates = list(drawn_blocks(member, context))
        enough = MOST / lr if lr else 1.0
        angle = lr * max((largest_angle(blocks, enough) for blocks in estimates), default=0.0)
        if not MOST < angle < float("inf"):
            return
        self._told.add(member.weight.stream)
        small = float(context.options["lr"]) / angle
        warn(
            f"a step turns a plane of {member.weight.name} by {angle:.3g} radians: blocks of "
            f"{member.choice.size} of its {member.weight.d} rows turn further than exact steps at "
            f"the same lr. lr={small:.2g} turns none by more than one radian; the lr of AngleSGD "
            "is the angle itself, for blocks of any size.",
            stacklevel=5,
        )


def largest_angle(blocks: MatrixBlocks, enough: float) -> float:
    """The largest spectral norm of skew blocks, or a bound on it that is not above `enough`."""
    found = 0.0
    for block in blocks:
        if block.shape[-1] < 2 or not len(block):
            continue
        bound = float(torch.linalg.matrix_norm(block).max()) / 2**0.5  # planes come in pairs
        if block.shape[-1] > 3 and enough < bound < float("inf"):
            bound = float(torch.linalg.matrix_norm(block, ord=2).max())
        found = max(found, bound)
    return found


def drawn_blocks(member: Member, context: Context) -> Iterable[MatrixBlocks]:
    """The first estimates of the generators that the kernels will draw, one for each matrix."""
    weight, state, size = member.weight, member.state, member.choice.size
    assert isinstance(size, int)
    update, device = context.update, weight.p.device
    (X, M), G = weight.matrices(state), weight.view(context.gradients[member.index])
    D, _ = direction(G.to(X.dtype), M, update)
    moments: Float[Tensor, "n d"] | None = None
    if update.beta2 is not None:
        taken = context.clock.taken(state, device)
        moments = row_moments(state["exp_avg_sq"].clone(), G, taken, update)
    time = torch.tensor(context.clock.time(device) * update.num_draws, device=device)
    scale = float(1 / edge_probability(weight.d, size))
    for b, (X_b, D_b) in enumerate(zip(X, D, strict=True)):
        partition = drawn_partition(weight.d, size, update, weight.stream + b, time)
        blocks = EdgeWeights(X_b, D_b).blocks(partition)
        if moments is not None:
            blocks = divide_blocks(blocks, partition, moments[b])
        yield tuple(scale * block for block in blocks)
