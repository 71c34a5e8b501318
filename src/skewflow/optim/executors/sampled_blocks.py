"""Blocks of one weight that a sampler draws on the host, matrix by matrix."""

from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..._typing import MatrixBlocks
from ...kernels.block_step import rotate_
from ...kernels.rotate_blocks.reference import divide_blocks
from ...kernels.row_moments.reference import row_moments
from ...kernels.turn_by_angle.reference import blocks_by_angle
from ...kernels.update import Update, direction
from ...samplers import Sampler
from ...tournaments.edge_weights import EdgeWeights
from ...tournaments.partitions import Partition
from ..gradient import unusable_gradient
from ..initial_state import begin_samplers
from ..options import is_fused
from .executor import Context, Draws, Executor, Member, Settings

Estimate = tuple[int, Partition, MatrixBlocks]
"""The number of a matrix, blocks of its rows, and the estimate of its generator inside them."""


class SampledBlocks(Executor):
    """One weight, in blocks that a sampler draws for each of its matrices.

    A sampler may refuse a generator, so all weights of an optimiser draw before the first one
    moves.
    """

    def __init__(self, members: Sequence[Member], settings: Settings) -> None:
        super().__init__(members, settings)
        (member,) = members
        self._weight, self._state, self._index = member.weight, member.state, member.index
        begin_samplers(self._state, settings.options, member.weight)
        self.estimates: list[Estimate] = []
        """The rotations of the next step, once it is prepared: for each matrix every draw."""
        self._squares: Tensor | None = None
        self._undo: list[Callable[[], object]] = []

    @staticmethod
    def key(member: Member, settings: Settings) -> Hashable:
        """Each weight has an executor."""
        fused = is_fused(settings.options["sampler"]) or member.choice.size == "dense"
        return None if member.gradient is None or fused else id(member)

    def prepare(self, context: Context) -> None:
        """Check the gradient, and draw."""
        from ...kernels._runtime.finite import is_usable  # numba, on use

        weight, state, grad = self._weight, self._state, context.gradients[self._index]
        self._undo = []
        self.left_out = () if is_usable(grad) else self.members
        if self.left_out:
            if not self.skips:
                raise unusable_gradient(weight, grad)
            return
        generator, samplers = state["generator"], state["samplers"]
        before = generator.get_state()
        self._undo.append(lambda: generator.set_state(before))
        for sampler in samplers:
            self._undo.append(partial(sampler.load_state_dict, sampler.state_dict()))
        update = context.update
        (X, M), G, moments = weight.matrices(state), weight.view(grad), None
        self._squares = None
        if update.beta2 is not None:
            self._squares = state["exp_avg_sq"].clone()
            taken = context.clock.taken(state, weight.p.device)
            moments = row_moments(self._squares, G, taken, update)
        self.estimates = draw(X, G, M, update, samplers, generator, moments)

    def undo(self) -> None:
        """Restore the samplers and their generator."""
        for undo in self._undo:
            undo()
        self._undo = []

    def step(self, context: Context) -> None:
        """Take the step that was drawn; the momentum turns with its rows."""
        weight, state, update = self._weight, self._state, context.update
        if self.left_out:
            state["skipped"] += 1
            return
        (X, M), G = weight.matrices(state), weight.view(context.gradients[self._index])
        _, new = direction(G.to(X.dtype), M, update)
        if M is not None and new is not None:
            M.copy_(new)
        for b, partition, blocks in self.estimates:
            rotate_(X[b], None if M is None else M[b], partition, blocks, update)
        if self._squares is not None:
            state["exp_avg_sq"].copy_(self._squares)
        weight.write_back(state, X, M)
        self.estimates, self._undo = [], []

    def draws(self) -> Draws:
        """Draws of the next steps."""
        return draws_of(self._state)


def draws_of(state: dict[str, Any]) -> Draws:
    """Draws of the next steps of a weight, made by copies of its samplers."""
    samplers = deepcopy(state["samplers"])
    generator = state["generator"].clone_state()
    return lambda b, W: samplers[b].sample(W, generator=generator)


def draw(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    update: Update,
    samplers: Sequence[Sampler],
    generator: torch.Generator,
    moments: Float[Tensor, "n d"] | None = None,
) -> list[Estimate]:
    """The estimates of each matrix for a step; second moments of the rows divide its planes."""
    D, _ = direction(G.to(X.dtype), M, update)
    estimates = []
    for b, (X_b, D_b, sampler) in enumerate(zip(X, D, samplers, strict=True)):
        W = EdgeWeights(X_b, D_b)
        for _ in range(update.num_draws):
            t = sampler.sample(W, generator=generator)
            blocks = t.blocks(W)
            if moments is not None:
                blocks = divide_blocks(blocks, t.partition, moments[b])
            if update.angle is not None:
                blocks = blocks_by_angle(blocks, X.shape[-1], update.angle)
            estimates.append((b, t.partition, blocks))
    return estimates
