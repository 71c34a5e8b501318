"""What the next step will do to a weight (not in the paper as such)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.checks import orthogonality_error
from ..kernels.exact_polar.limits import LARGEST_TURN
from ..kernels.generator import forms_omega
from ..kernels.permutation.reference import matching_at, order_at
from ..kernels.rotate_blocks.reference import divide_blocks
from ..kernels.row_moments.reference import row_moments
from ..kernels.turn_by_angle.exact import direction_by_angle
from ..kernels.turn_by_angle.reference import blocks_by_angle
from ..kernels.update import Update, direction
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.partitions import Partition, block_sizes, edge_probability
from ..tournaments.tournament import Tournament
from .executors.executor import Context, Draws, Member


@dataclass(frozen=True)
class Diagnosis:
    r"""The next step of one parameter, and the past ones in numbers; see `FlowSGD.diagnose`.

    Args:
        name: The parameter.
        block_size: s, or "dense".
        variance_ratio: $E\|\hat\Omega\|_F^2 / \|\Omega\|_F^2$ of the estimate (Sec. 5): 1 is exact,
            1/P(e) uniform. Exact for the uniform law, a mean of 16 draws for other samplers.
        acceptance_rate: Partitions (of `Balanced`: edges) kept over those drawn; 1 where nothing is
            rejected. Of several matrices it is that of the worst, and so is the variance ratio.
        largest_angle: The largest angle, in radians, by which the next step turns a plane.
        orthogonality_error: The largest $\|X^\top X - I\|_F / \sqrt k$ of its matrices.
        polishes: Corrections by the drift guard so far.
        skipped: Steps so far that left it out, because its gradient was not finite.

    Example:
        >>> from skewflow.optim import FlowSGD
        >>> W = torch.nn.Parameter(torch.eye(8))
        >>> optimizer = FlowSGD([("W", W)], lr=0.1, block_size=2)
        >>> W.grad = torch.ones(8, 8).triu()
        >>> (report,) = optimizer.diagnose()
        >>> report.name, report.variance_ratio, round(report.largest_angle, 3)
        ('W', 7.0, 0.7)
    """

    name: str
    block_size: int | str
    variance_ratio: float
    acceptance_rate: float
    largest_angle: float
    orthogonality_error: float
    polishes: int
    skipped: int


NUM_DRAWS = 16
"""Draws of a sampler whose mean estimates the variance ratio."""


def diagnose(member: Member, context: Context, draws: Draws | None) -> Diagnosis:
    """The diagnosis of a weight before its next step; no `draws` means the uniform law."""
    weight, state, size = member.weight, member.state, member.choice.size
    update, device = context.update.with_stream(weight.stream), weight.p.device
    if size == "dense":
        retraction: Any = member.choice.retraction
        update = replace(update, retraction=retraction)
    (X, M), G = weight.matrices(state), weight.view(context.gradients[member.index])
    D, _ = direction(G.to(X.dtype), M, update)
    w = None
    if update.beta2 is not None:
        taken = context.clock.taken(state, device)
        w = row_moments(state["exp_avg_sq"].clone(), G, taken, update)
    ratio, rate, angle = 1.0, 1.0, 0.0
    for b in range(len(X)):
        w_b = None if w is None else w[b].cpu()
        X_b, D_b = X[b].cpu(), D[b].cpu()
        if not isinstance(size, int):
            angle = max(angle, _dense_angle(X_b, D_b, w_b, update))
            continue
        W = EdgeWeights(X_b, D_b)
        if draws is None:
            t = _fused_draw(weight.d, size, update, weight.stream + b, context.clock.time(device))
            ratio = float(1 / edge_probability(weight.d, size))
        else:
            drawn = [draws(b, W) for _ in range(NUM_DRAWS)]
            t, found = drawn[0], _statistics(drawn, W)
            ratio, rate = max(ratio, found[0]), min(rate, found[1])
        angle = max(angle, _block_angle(t, W, w_b, update, X.shape[-1]))
    error = float(orthogonality_error(X).max()) / X.shape[-1] ** 0.5
    return Diagnosis(
        name=weight.name,
        block_size=size,
        variance_ratio=ratio,
        acceptance_rate=rate,
        largest_angle=_turned(update.lr * angle, update.retraction),
        orthogonality_error=error,
        polishes=state.get("polishes", 0),
        skipped=int(state.get("skipped", 0)),
    )


def _fused_draw(d: int, block_size: int, update: Update, stream: int, step: int) -> Tournament:
    """The subtournament that the fused step number `step` turns."""
    time, seed = torch.tensor(step), update.seed
    if block_size == 2:
        pairs, alone = matching_at(d, seed, stream, time, independent=update.independent)
        partition = Partition.of([*pairs.tolist(), *[[i] for i in alone.tolist()]])
    else:
        order = order_at(d, seed, stream, time)
        partition = Partition.from_order(order, block_sizes(d, block_size))
    return Tournament(partition, float(1 / edge_probability(d, block_size)))


def _turned(angle: float, retraction: str) -> float:
    """By how much a retraction turns where the exponential turns by `angle`."""
    if retraction == "cayley":
        return 2 * math.atan(angle / 2)
    return min(math.atan(angle), LARGEST_TURN) if retraction == "polar" else angle


def _dense_angle(
    X: Float[Tensor, "d k"],
    D: Float[Tensor, "d k"],
    moments: Float[Tensor, "d"] | None,
    update: Update,
) -> float:
    """The largest angle of a dense step with lr = 1: the spectral norm of its generator."""
    if update.angle is not None:
        D = direction_by_angle(X[None], D[None], update.angle)[0]
    omega = D @ X.mT - X @ D.mT
    if moments is not None and not forms_omega(X.shape[0], X.shape[1], update.retraction):
        omega = omega / moments.mean().sqrt()
    elif moments is not None:
        omega = omega / ((moments[:, None] + moments) / 2).sqrt()
    return float(torch.linalg.matrix_norm(omega, ord=2))


def _block_angle(
    t: Tournament,
    W: EdgeWeights,
    moments: Float[Tensor, "d"] | None,
    update: Update,
    columns: int,
) -> float:
    """The same for a subtournament: the largest spectral norm of its blocks."""
    blocks = t.blocks(W)
    if moments is not None:
        blocks = divide_blocks(blocks, t.partition, moments)
    if update.angle is not None:
        blocks = blocks_by_angle(blocks, columns, update.angle)
    norms = [torch.linalg.matrix_norm(block, ord=2).max() for block in blocks if block.numel()]
    return float(torch.stack(norms).max())


def _statistics(draws: Sequence[Tournament], W: EdgeWeights) -> tuple[float, float]:
    """Variance ratio and acceptance rate, from draws."""
    total = W.h_norm("square")
    energies = [sum(float(b.square().sum()) for b in t.blocks(W)) for t in draws]
    ratio = sum(energies) / len(draws) / total if total else 1.0
    return ratio, len(draws) / sum(t.trials for t in draws)
