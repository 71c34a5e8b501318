"""Steps with any sampler: the estimate is drawn on the host, matrix by matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..._typing import MatrixBlocks
from ...kernels.block_step import rotate_
from ...kernels.permutation.reference import make_key, scalar
from ...kernels.rotate_blocks.reference import divide_blocks
from ...kernels.update import Update, direction
from ...samplers import Sampler
from ...tournaments.edge_weights import EdgeWeights
from ...tournaments.partitions import Partition
from ..options import make_sampler
from ..weight import Weight


@dataclass
class Drawn:
    """What the samplers of a weight have drawn for one step.

    Args:
        estimates: For each matrix the blocks of rows, and the estimate inside of them.
        squares: The new second moments of the rows, or None.
    """

    estimates: list[tuple[Partition, MatrixBlocks]]
    squares: Float[Tensor, "n d"] | None


def draw(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    update: Update,
    samplers: Sequence[Sampler],
    generator: torch.Generator,
    moments: Float[Tensor, "n d"] | None = None,
) -> list[tuple[Partition, MatrixBlocks]]:
    """The estimates of a step, with one sampler for each matrix; no tensor is changed.

    Second moments of the rows, if given, divide the drawn planes.
    """
    D, _ = direction(G.to(X.dtype), M, update)
    estimates = []
    for b, (X_b, D_b, sampler) in enumerate(zip(X, D, samplers, strict=True)):
        W = EdgeWeights(X_b, D_b)
        t = sampler.sample(W, generator=generator)
        blocks = t.blocks(W)
        if moments is not None:
            blocks = divide_blocks(blocks, t.partition, moments[b])
        estimates.append((t.partition, blocks))
    return estimates


def turn_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    update: Update,
    estimates: Sequence[tuple[Partition, MatrixBlocks]],
) -> None:
    """Take the step that was drawn, in place; the momentum M turns with its rows."""
    _, new = direction(G.to(X.dtype), M, update)
    if M is not None and new is not None:
        M.copy_(new)
    for b, (partition, blocks) in enumerate(estimates):
        rotate_(X[b], None if M is None else M[b], partition, blocks, update)


def samplers_of(
    state: dict[str, Any], group: dict[str, Any], weight: Weight, size: int
) -> list[Sampler]:
    """The samplers of a weight's matrices, made once."""
    if "samplers" not in state:
        make = [make_sampler(group["sampler"], size) for _ in range(weight.num_matrices)]
        state["samplers"] = make
    samplers: list[Sampler] = state["samplers"]
    return samplers


def generator_of(state: dict[str, Any], weight: Weight, seed: int) -> torch.Generator:
    """What a weight's samplers draw from, made once."""
    if "generator" not in state:
        # Drawing happens on the CPU: these samplers decide on the host anyway.
        # Hashed, because a CPU generator takes only the low 32 bits of its seed.
        cpu = torch.device("cpu")
        key = make_key(scalar(seed, cpu), scalar(weight.stream, cpu), scalar(0, cpu))
        state["generator"] = torch.Generator().manual_seed(int(key))
    generator: torch.Generator = state["generator"]
    return generator
