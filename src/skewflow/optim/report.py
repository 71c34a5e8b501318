"""Reports: the steps of each weight in plain numbers (not in the paper as such)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from .weight import Weight


class Report(dict[str, float]):
    r"""A dict of numbers under keys "weight/number", and the reason for each weight's step.

    `print` shows both. W&B's `log` and Lightning's `log_dict` take the dict; for TensorBoard call
    `add_scalar` for each item. Spaces in names become underscores. The numbers of a weight are

    - `block_size`: rows that turn together, all d in an exact step;
    - `orthogonality_error`: the largest $\|X^\top X - I\|_F / \sqrt k$ of its matrices;
    - `polishes`: how often the drift guard has corrected it;
    - `skipped`: steps that left it out, because its gradient was not finite;

    and for a weight with a usable dense gradient, facts about its next step, or of several draws
    about one:

    - `largest_angle`: the largest angle, in radians, by which it turns a plane;
    - `variance_ratio`: $E\|\hat\Omega\|_F^2 / \|\Omega\|_F^2$ of the estimate, its noise (Sec. 5):
      1 is exact, 1/P(e) uniform. Exact for the uniform law, a mean of 16 draws for samplers;
    - `acceptance_rate`: partitions (of `Balanced`: edges) kept over those drawn; 1 where nothing is
      rejected. Of several matrices it is that of the worst, and so is the variance ratio.

    Attributes:
        reasons: For each weight a sentence that says how it is stepped, and why.

    Example:
        >>> from skewflow.optim import FlowSGD
        >>> W = torch.nn.Parameter(torch.eye(8))
        >>> optimizer = FlowSGD([("W", W)], lr=0.1, block_size=2)
        >>> W.grad = torch.ones(8, 8).triu()
        >>> report = optimizer.report()
        >>> report["W/variance_ratio"], round(report["W/largest_angle"], 3)
        (7.0, 0.7)
        >>> report.reasons["W"]
        'W (8 x 8 on cpu): blocks of 2 rows, the size of its group.'
    """

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}

    def add(self, weight: Weight, reason: str, numbers: Mapping[str, float]) -> None:
        """Add a weight, or more numbers of one."""
        key = weight.name.replace(" ", "_")
        self.reasons[key] = reason
        self.update({f"{key}/{name}": value for name, value in numbers.items()})

    def __str__(self) -> str:
        lines = []
        for key, reason in self.reasons.items():
            numbers = [
                f"{name.removeprefix(key + '/')} {value:.3g}"
                for name, value in self.items()
                if name.startswith(key + "/")
            ]
            lines += [reason, f"  {', '.join(numbers)}"]
        return "\n".join(lines)


NUM_DRAWS = 16
"""Draws of a sampler whose mean estimates the variance ratio."""


def past(weight: Weight, state: Mapping[str, Any], size: int | str) -> dict[str, float]:
    """The numbers of a weight that need no gradient, given the rows of its blocks."""
    X = weight.view(weight.gathered(state.get("master", weight.p.detach())))
    return {
        "block_size": size if isinstance(size, int) else weight.d,
        "orthogonality_error": float(orthogonality_error(X).max()) / X.shape[-1] ** 0.5,
        "polishes": state.get("polishes", 0),
        "skipped": int(state.get("skipped", 0)),
    }


def next_step(member: Member, context: Context, draws: Draws | None) -> dict[str, float]:
    """The numbers of a weight's next step; no `draws` means the uniform law."""
    weight, state, size = member.weight, member.state, member.choice.size
    update, device = context.update.with_stream(weight.stream), weight.p.device
    if size == "dense":
        retraction: Any = member.choice.retraction
        update = replace(update, retraction=retraction)
    X, M, G = weight.whole(state, context.gradients[member.index])
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
            time = context.clock.time(device) * update.num_draws
            t = _fused_draw(weight.d, size, update, weight.stream + b, time)
            ratio = float(1 / edge_probability(weight.d, size))
        else:
            drawn = [draws(b, W) for _ in range(NUM_DRAWS)]
            t, found = drawn[0], _statistics(drawn, W)
            ratio, rate = max(ratio, found[0]), min(rate, found[1])
        angle = max(angle, _block_angle(t, W, w_b, update, X.shape[-1]))
    return {
        "largest_angle": _turned(update.lr_of_draw * angle, update.retraction),
        "variance_ratio": ratio,
        "acceptance_rate": rate,
    }


def _fused_draw(d: int, block_size: int, update: Update, stream: int, draw: int) -> Tournament:
    """The subtournament that the fused draw number `draw` turns."""
    time, seed = torch.tensor(draw), update.seed
    if block_size == 2:
        pairs, unpaired = matching_at(d, seed, stream, time, independent=update.independent)
        partition = Partition.of([*pairs.tolist(), *[[i] for i in unpaired.tolist()]])
    else:
        order = order_at(d, seed, stream, time)
        partition = Partition.from_order(order, block_sizes(d, block_size))
    return Tournament(partition, float(1 / edge_probability(d, block_size)))


def _turned(angle: float, retraction: str) -> float:
    """The angle by which a retraction turns where the exponential turns by `angle`."""
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
