"""The variance-optimal law on T_s, with a Monte-Carlo partition function (Lemma 3.2)."""

from dataclasses import dataclass

import torch

from .. import _validate
from ..errors import SamplingError
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.partition_weights import partition_norm, partition_weight
from ..tournaments.partitions import BlockSize, Partition, block_sizes, edge_probability
from ..tournaments.theory.bounds import certified_norm
from ..tournaments.theory.counting import num_partitions_with_edge
from ..tournaments.theory.enumeration import enumerate_partitions
from ..tournaments.tournament import Law, Tournament
from ..tournaments.weight_functions import NEGLIGIBLE
from . import _draw
from .base import Sampler
from .h_regular import HRegular
from .rejection import PATIENCE
from .uniform import Uniform


@dataclass(frozen=True)
class Optimal(Sampler):
    r"""$p_T = a_T/Z$ with $a_T = \sqrt{\sum_{e\in T} w_e^2}$; weight $Z/(W a_T)$ (Lemma 3.2).

    T is drawn exactly, by rejection. Proposals come from the uniform law, accepted with probability
    $a_T/a_{max}$ and a certified $a_{max}$, or from the h-regular law with h = abs, accepted with
    probability $a_T/\ell^1_T$; the sampler computes in advance which of them accepts more often.
    The partition function $Z = \sum_T a_T$ is estimated as N times the mean of `num_samples`
    independent uniform $a_T$ (Sec. 3.2.2). The estimate of $\Omega$ stays unbiased, and its second
    moment is $1 + \mathrm{CV}(a)^2/\mathtt{num\_samples}$ times as large. A draw reads all of
    $\Omega$.

    Args:
        block_size: s, or the size of each block.
        num_samples: Number of uniform draws for each estimate of Z.

    Example:
        >>> W = EdgeWeights(torch.eye(6), torch.arange(36.0).view(6, 6))
        >>> t = Optimal(2).sample(W, generator=torch.Generator().manual_seed(0))
        >>> t.partition.sizes
        (2, 2, 2)
    """

    block_size: BlockSize
    num_samples: int = 32

    def __post_init__(self) -> None:
        _validate.count(self.num_samples, "num_samples")

    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Draw T, then an independent estimate of Z."""
        self._check(W, generator)
        W.dense()  # many trials read many entries, so they read a table
        if W.h_norm("square") < NEGLIGIBLE:  # treated as Omega = 0: any law is unbiased
            return Uniform(self.block_size).sample(W, generator=generator)
        T, trials = self._draw(W, generator)
        mean = self._mean_norm(W, generator)
        scale = mean / (float(edge_probability(W.d, self.block_size)) * partition_norm(W, T))
        return Tournament(T, scale, trials)

    def law(self, W: EdgeWeights) -> Law:
        """All partitions with a_T > 0; the weights have the exact Z, the mean of its estimates."""
        W.dense()
        if W.h_norm("square") < NEGLIGIBLE:
            return Uniform(self.block_size).law(W)
        ways = num_partitions_with_edge(W.d, self.block_size)
        partitions = [T.to(W.device) for T in enumerate_partitions(W.d, self.block_size)]
        norms = [partition_norm(W, T) for T in partitions]
        Z = sum(norms)
        return [
            (Tournament(T, Z / (ways * a)), a / Z)
            for T, a in zip(partitions, norms, strict=True)
            if a > 0
        ]

    def _mean_norm(self, W: EdgeWeights, generator: torch.Generator) -> float:
        """An estimate of Z/N."""
        proposal = Uniform(self.block_size)
        draws = (proposal.sample(W, generator=generator) for _ in range(self.num_samples))
        return sum(partition_norm(W, t.partition) for t in draws) / self.num_samples

    def _draw(self, W: EdgeWeights, generator: torch.Generator) -> tuple[Partition, int]:
        """A partition from the optimal law, and the number of trials."""
        # Acceptance is E[a]/a_max from the uniform law and E[a]/(P(e) H) from the abs law.
        bound = certified_norm(W, self.block_size)
        abs_bound = float(edge_probability(W.d, self.block_size)) * W.h_norm("abs") / 2
        from_uniform = bound <= abs_bound
        proposal = Uniform(self.block_size) if from_uniform else HRegular(self.block_size, "abs")
        # The chosen acceptance is at least that from the abs law, which is at least 1/sqrt(m).
        edges = sum(n * s * (s - 1) // 2 for s, n in block_sizes(W.d, self.block_size))
        limit = int(PATIENCE * edges**0.5)
        for trial in range(1, limit + 1):
            T = proposal.sample(W, generator=generator).partition
            top = bound if from_uniform else partition_weight(W, T, "abs")
            if _draw.uniform(generator) * top < partition_norm(W, T):
                return T, trial
        raise SamplingError(
            f"no partition was accepted in {limit} trials, {PATIENCE} times the largest expected "
            "number. Use HRegular(block_size, 'abs'), which never rejects."
        )
