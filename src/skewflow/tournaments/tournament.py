"""A sampled subtournament with the weights that make the estimate unbiased (Eq. 6)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .._typing import MatrixBlocks
from .edge_weights import EdgeWeights
from .partitions import Partition


@dataclass(frozen=True, eq=False)
class Tournament:
    r"""A partition T and its weights: the estimate is $\hat\Omega_{ij} = c_{ij}\Omega_{ij}$ on T.

    Args:
        partition: The blocks.
        weights: One factor c for all edges ($\frac1{p_T}M$ of Eq. 6), or one symmetric (l, s, s)
            tensor for each tensor of ``partition.blocks`` if the factors differ.
        trials: Number of partitions that were drawn to find this one (`Balanced` counts edges); 1
            without rejection.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0.0, 2.0], [-2.0, 0.0]]))
        >>> Tournament(Partition.of([[0, 1]]), weights=3.0).dense(W)
        tensor([[ 0.,  6.],
                [-6.,  0.]])
    """

    partition: Partition
    weights: float | MatrixBlocks
    trials: int = 1

    def blocks(self, W: EdgeWeights) -> MatrixBlocks:
        """The estimate inside each block, one (l, s, s) tensor for each block size."""
        omega = W.blocks(self.partition)
        if isinstance(self.weights, tuple):
            return tuple(c.to(o) * o for c, o in zip(self.weights, omega, strict=True))
        return tuple(self.weights * o for o in omega)

    def dense(self, W: EdgeWeights) -> Float[Tensor, "d d"]:
        """The estimate as a (d, d) matrix, zero outside the blocks. For tests and small d."""
        estimate = torch.zeros(W.d, W.d, dtype=W.dtype, device=W.device)
        for b, omega in zip(self.partition.blocks, self.blocks(W), strict=True):
            estimate[b[:, :, None], b[:, None, :]] = omega
        return estimate


Law = list[tuple[Tournament, float]]
"""All outcomes of a sampler, each once, with their probabilities."""
