"""Steps with any sampler: the estimate is drawn on the host, matrix by matrix."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernels.rotate_blocks.reference import divide_blocks, rotate_blocks
from ..kernels.update import Update
from ..samplers import Sampler
from ..tournaments.edge_weights import EdgeWeights


def sampled_step_(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    update: Update,
    samplers: Sequence[Sampler],
    generator: torch.Generator,
    moments: Float[Tensor, "n d"] | None = None,
) -> None:
    """One step along the direction D, in place, with one sampler for each matrix.

    Second moments of the rows, if given, divide the drawn planes.
    """
    for b, (X_b, D_b, sampler) in enumerate(zip(X, D, samplers, strict=True)):
        W = EdgeWeights(X_b, D_b)
        t = sampler.sample(W, generator=generator)
        blocks = t.blocks(W)
        if moments is not None:
            blocks = divide_blocks(blocks, t.partition, moments[b])
        X_b.copy_(rotate_blocks(X_b, t.partition, blocks, -update.lr, update.retraction))
