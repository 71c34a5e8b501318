"""h-regular laws on T_s: edge completion and Algorithm 1 (Definition 3.3)."""

from dataclasses import dataclass
from typing import Literal

import torch

from .. import _validate
from ..errors import BalanceError
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.partition_weights import partition_weight
from ..tournaments.partitions import BlockSize, Partition, block_sizes
from ..tournaments.theory.bounds import balanced_tau_ratio, certified_tau, heavy_partition
from ..tournaments.theory.counting import num_partitions_with_edge
from ..tournaments.theory.enumeration import enumerate_partitions
from ..tournaments.theory.inclusion import h_regular_inclusion
from ..tournaments.tournament import Law, Tournament
from ..tournaments.weight_functions import NEGLIGIBLE, H, h_values, weight_function
from . import _draw
from .base import Sampler
from .rejection import balance_message, reject
from .uniform import Uniform

METHODS = ("edge", "reject-1", "reject-2")
"""The ways to draw; see `HRegular`."""


@dataclass(frozen=True)
class HRegular(Sampler):
    r"""$p_T \propto h(G_T) = \sum_{e\in T} h(w_e)$ on T_s; weight $\|h(\Omega)\|_1 / (2h(G_T))$.

    The h-regular law of Definition 3.3. Three methods draw from this same law:

    - "edge" (not in the paper) draws an edge with probability $h_e/H$ and then a uniform partition
      that holds it. Each edge lies in W partitions, so
      $P(T) = \sum_{e\in T} \frac{h_e}{H}\frac1W = p_T$. Nothing is rejected. The row sums of h are
      computed once for each `EdgeWeights`; a draw then reads one row and the edges of T, which
      costs $O(ds)$ with a table of $\Omega$ and $O(dsk)$ without. For ``h="square"`` the row sums
      cost $O(dk^2)$ and $\Omega$ is never formed.
    - "reject-1" is Algorithm 1, version I, with $\tau = \|h(\Omega)\|_1$. It takes (d-1)/(s-1)
      trials on average, which together read as many entries as $\Omega$ has.
    - "reject-2" is version II with a smaller $\tau$. With `alpha` and `beta` it is
      $\tau = \min(1, \frac{s-1}{d\alpha\beta})\|h(\Omega)\|_1$, and an error is raised if that is
      below the certified bound of `certified_tau`, which does not happen for a balanced $\Omega$.
      Without them $\tau$ is the certified bound. Both read all of $\Omega$.

    Args:
        block_size: s, or every block's size.
        h: "abs", "square", "sqrt" or a function: even, zero at zero, positive elsewhere.
        method: How to draw.
        horvitz_thompson: Use the weight $1/P(e\in T)$ for each edge, which is unbiased too and
            never has more variance.
        alpha: For "reject-2": at least this fraction of the entries has $h \ge \beta\max h$.
        beta: See `alpha`.

    Example:
        >>> W = EdgeWeights(torch.eye(6), torch.arange(36.0).view(6, 6))
        >>> t = HRegular(2, h="abs").sample(W, generator=torch.Generator().manual_seed(0))
        >>> t.partition.sizes, t.trials
        ((2, 2, 2), 1)
    """

    block_size: BlockSize
    h: H = "abs"
    method: Literal["edge", "reject-1", "reject-2"] = "edge"
    horvitz_thompson: bool = False
    alpha: float | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        weight_function(self.h)
        _validate.one_of(self.method, METHODS, "method")
        if (self.alpha is None) != (self.beta is None):
            raise ValueError(
                f"`alpha` and `beta` go together: got alpha={self.alpha}, beta={self.beta}. "
                "Pass both, or neither."
            )
        if self.alpha is not None and self.method != "reject-2":
            raise ValueError(
                "`alpha` and `beta` belong to version II: got "
                f"method={self.method!r}. Use method='reject-2', or leave them out."
            )

    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Draw a partition by the chosen method."""
        self._check(W, generator)
        if self.method == "reject-2":
            W.dense()  # the certified bound reads all of Omega, and the norm then uses the table
        norm = W.h_norm(self.h)
        if norm < NEGLIGIBLE:  # treated as Omega = 0: any law is unbiased
            return Uniform(self.block_size).sample(W, generator=generator)
        if self.method == "edge":
            T, trials = self._complete_an_edge(W, generator), 1
            weight = partition_weight(W, T, self.h)
        else:
            tau, why = self._bound(W, norm)
            T, weight, trials = reject(
                W,
                self.block_size,
                self.h,
                tau=tau,
                rho=tau / norm,
                generator=generator,
                why=why,
            )
        # A weight of zero means that the norm is rounding only; every estimate is then zero.
        return self._tournament(W, T, norm / (2 * weight) if weight > 0 else 0.0, trials)

    def law(self, W: EdgeWeights) -> Law:
        r"""All partitions with $p_T = 2h(G_T)/(W\|h(\Omega)\|_1) > 0$ (Lemma 3.5)."""
        norm = W.h_norm(self.h)
        if norm < NEGLIGIBLE:
            return Uniform(self.block_size).law(W)
        ways = num_partitions_with_edge(W.d, self.block_size)
        law = []
        for partition in enumerate_partitions(W.d, self.block_size):
            T = partition.to(W.device)
            weight = partition_weight(W, T, self.h)
            if weight > 0:
                p = 2 * weight / (ways * norm)
                law.append((self._tournament(W, T, norm / (2 * weight)), p))
        return law

    def _tournament(
        self, W: EdgeWeights, T: Partition, scale: float, trials: int = 1
    ) -> Tournament:
        if not self.horvitz_thompson:
            return Tournament(T, scale, trials)
        inclusion = h_regular_inclusion(W, T, self.block_size, self.h)
        # An edge with pi = 0 has weight zero, or it could not stand in T.
        weights = tuple(torch.where(pi > 0, 1 / pi, torch.zeros_like(pi)) for pi in inclusion)
        return Tournament(T, weights, trials)

    def _complete_an_edge(self, W: EdgeWeights, generator: torch.Generator) -> Partition:
        sizes = block_sizes(W.d, self.block_size)
        sums = W.row_sums(self.h)
        while sums.any():
            i = int(_draw.categorical(sums, 1, generator))
            row = h_values(self.h, W.row(i))
            if row.any():
                j = int(_draw.categorical(row, 1, generator))
                return _draw.completion(W.d, sizes, i, j, generator).to(W.device)
            sums = sums.index_fill(0, torch.tensor(i, device=W.device), 0.0)  # rounding, not weight
        return Uniform(self.block_size).sample(W, generator=generator).partition

    def _bound(self, W: EdgeWeights, norm: float) -> tuple[float, str]:
        """A true bound on 2 max h(G_T), and where it comes from; or an error."""
        if self.method == "reject-1":
            return norm, "tau = ||h(Omega)||_1 (version I)"
        certified = certified_tau(W, self.block_size, self.h)
        if self.alpha is None or self.beta is None:
            return certified, "the certified tau"
        tau = balanced_tau_ratio(W.d, self.block_size, self.alpha, self.beta) * norm
        why = f"alpha={self.alpha:g}, beta={self.beta:g}"
        if tau < certified * (1 - 1e-12):
            # A balanced Omega always passes: then tau >= d(s-1) max h, which is no less than the
            # certified bound.
            heavy = heavy_partition(W, self.block_size, self.h)
            q = 2 * partition_weight(W, heavy, self.h) / tau
            raise BalanceError(balance_message(q, why, certified / tau))
        return tau, why
