"""Steps with any sampler: the estimate is drawn on the host, matrix by matrix."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernels.permutation.reference import make_key, scalar
from ..kernels.rotate_blocks.reference import divide_blocks, rotate_blocks
from ..kernels.update import Update, apart, beside, direction
from ..samplers import Sampler
from ..tournaments.edge_weights import EdgeWeights
from ._options import make_sampler
from ._weights import Weight


def sampled_step_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    update: Update,
    samplers: Sequence[Sampler],
    generator: torch.Generator,
    moments: Float[Tensor, "n d"] | None = None,
) -> None:
    """One step in place, with one sampler for each matrix; the momentum M turns with its rows.

    Second moments of the rows, if given, divide the drawn planes.
    """
    D, new = direction(G.to(X.dtype), M, update)
    both = zip(X, D, beside(X, new), samplers, strict=True)
    for b, (X_b, D_b, XM_b, sampler) in enumerate(both):
        W = EdgeWeights(X_b, D_b)
        t = sampler.sample(W, generator=generator)
        blocks = t.blocks(W)
        if moments is not None:
            blocks = divide_blocks(blocks, t.partition, moments[b])
        turned = rotate_blocks(XM_b, t.partition, blocks, -update.lr, update.retraction)
        X_new, M_new = apart(turned, X.shape[-1])
        X_b.copy_(X_new)
        if M is not None and M_new is not None:
            M[b].copy_(M_new)


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
