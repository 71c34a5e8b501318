"""The uniform law on T_s (Sec. 3.2, Lemma 9.3)."""

from dataclasses import dataclass

import torch

from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.partitions import BlockSize, Partition, block_sizes, edge_probability
from ..tournaments.theory.enumeration import enumerate_partitions
from ..tournaments.tournament import Law, Tournament
from . import _draw
from .base import Sampler


@dataclass(frozen=True)
class Uniform(Sampler):
    r"""Every partition into blocks of s with the same probability; weight $\frac{d-1}{s-1}$.

    The rows are shuffled and cut into blocks (Lemma 9.3); no entry of $\Omega$ is read. If sizes
    differ, the weight is $1/P(e)$ of `edge_probability` for every block. The variance is
    $\frac{d-s}{s-1}\|\Omega\|_F^2$; ``block_size=d`` is the exact method and has none.

    Args:
        block_size: s, between 2 and d, or the size of each block.

    Example:
        >>> W = EdgeWeights(torch.eye(6), torch.arange(36.0).view(6, 6))
        >>> t = Uniform(3).sample(W, generator=torch.Generator().manual_seed(0))
        >>> t.partition.sizes, t.weights, W.evaluated
        ((3, 3), 2.5, 0)
    """

    block_size: BlockSize

    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Draw a partition in O(d)."""
        self._check(W, generator)
        sizes = block_sizes(W.d, self.block_size)
        order = _draw.permutation(W.d, generator).to(W.device)
        return Tournament(Partition.from_order(order, sizes), self._weight(W.d))

    def law(self, W: EdgeWeights) -> Law:
        """All N partitions, each with probability 1/N."""
        partitions = [T.to(W.device) for T in enumerate_partitions(W.d, self.block_size)]
        weight = self._weight(W.d)
        return [(Tournament(T, weight), 1 / len(partitions)) for T in partitions]

    def _weight(self, d: int) -> float:
        return float(1 / edge_probability(d, self.block_size))
