"""The h-regular law of a balanced Omega, from few of its entries (Sec. 3.3, Theorem 3.6)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import _validate
from ..errors import BalanceError
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.partitions import BlockSize, Partition, SizeCounts, block_sizes
from ..tournaments.theory.bounds import balanced_tau_ratio
from ..tournaments.tournament import Law, Tournament
from ..tournaments.weight_functions import NEGLIGIBLE, H, h_values, weight_function
from . import _draw
from .base import Sampler
from .h_regular import HRegular
from .uniform import Uniform

MARGIN = 2.0
"""Factor on the estimated bound on h, so that an estimate that is too low by half does no harm."""

PATIENCE = 40
"""A draw gives up after this many times the expected number of trials. For a balanced Omega this
has a probability of exp(-40)."""

MOST_TRIALS = 2**16
"""Largest number of edges that one attempt tries; usually it is four times the expected number."""

WAY_OUT = "Lower alpha or beta, or use HRegular, which reads all of Omega and needs no balance."
"""The last sentence of the error messages about balance."""

CHUNK = 64
"""Number of edges that are read at once while one of them may be accepted."""


class RandomNumbers(NamedTuple):
    """The random numbers of one attempt; edges are numbers in 0..d(d-1)-1, see `edges_of`."""

    edges: Int[Tensor, "n"]
    thresholds: Float[Tensor, "m"]
    rest: Int[Tensor, "c"]
    place: int


class Attempt(NamedTuple):
    """The result of one attempt; the partition is None if no edge was accepted."""

    partition: Partition | None
    scale: float
    trials: int


def edges_of(index: Int[Tensor, "n"], d: int) -> Int[Tensor, "n 2"]:
    """The ordered pairs (i, j), i != j, with the given numbers, row by row.

    Example:
        >>> edges_of(torch.arange(6), 3).tolist()
        [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    """
    i, j = index // (d - 1), index % (d - 1)
    return torch.stack([i, j + (j >= i)], dim=-1)


@dataclass(frozen=True)
class Balanced(Sampler):
    r"""The law of `HRegular` for a balanced $\Omega$, from O(ds) of its entries (Theorem 3.6).

    An $\Omega$ is $(\alpha, \beta, h)$-balanced if a fraction $\alpha$ of its entries has
    $h \ge \beta\max h$ (`tournaments.theory.balance` measures it). Then no h exceeds
    $1/(\alpha\beta)$ times the mean of h. A draw takes four steps:

    1. The mean $m_1$ of h over `num_samples` random edges gives the bound
       $c = 2m_1/(\alpha\beta)$ on h.
    2. Random edges are tried until one is accepted, e with probability $h_e/c$. This is the
       rejection of Algorithm 1, version II, applied to edges instead of partitions.
    3. The accepted edge is completed to a uniform partition T that holds it, as in `HRegular`.
    4. The mean $m_2$ of h over `num_samples` other random edges gives the weight
       $d(d-1)m_2 / (2h(G_T))$.

    The expected number of entries read is
    $2\,\mathtt{num\_samples} + 2/(\alpha\beta) + d(s-1)/2$, below the $O(ds/(\alpha\beta))$ of the
    theorem; $\Omega$ is never formed.

    These claims are exact: given $m_1$, if no h exceeds c, T has the h-regular law
    $p_T = 2h(G_T)/(W\|h(\Omega)\|_1)$, $m_2$ is independent of T, and
    $E[\hat\Omega \mid m_1] = \Omega$. If $m_1 = 0$ the draw is that of `Uniform`, which is unbiased
    too. The weight is approximate: the noise of $m_2$ multiplies the second moment of the estimate
    by $1 + \mathrm{CV}(h)^2/\mathtt{num\_samples}$, with the coefficient of variation of h over all
    edges.

    For a balanced $\Omega$ some h can exceed c only if $m_1$ falls below half of its mean, with
    a probability of at most $\exp(-\alpha\beta\,\mathtt{num\_samples}/8)$ by Chernoff's bound. If
    $\Omega$ is less balanced than declared, a `BalanceError` is raised when an entry above c is
    read, or after 40 times the expected number of trials. Until such an entry is read, partitions
    that hold one are drawn too rarely and the estimate is biased.

    Args:
        block_size: s, or the size of each block.
        h: "abs", "square", "sqrt" or a function that is even, zero at zero and positive elsewhere.
            On a CPU "abs" is compiled.
        alpha: At least this fraction of the entries has $h \ge \beta\max h$.
        beta: See `alpha`. Only the product of the two matters.
        num_samples: Number of random edges for each of the two means.

    Example:
        >>> W = EdgeWeights(torch.eye(300), torch.arange(90_000.0).view(300, 300))
        >>> t = Balanced(2).sample(W, generator=torch.Generator().manual_seed(0))
        >>> W.evaluated == 2 * 128 + t.trials + 150
        True
    """

    block_size: BlockSize
    h: H = "abs"
    alpha: float = 0.1
    beta: float = 0.1
    num_samples: int = 128

    def __post_init__(self) -> None:
        weight_function(self.h)
        balanced_tau_ratio(2, 2, self.alpha, self.beta)  # checks alpha and beta
        _validate.count(self.num_samples, "num_samples")

    def limit(self, d: int) -> float:
        """The largest accepted ratio of an h to the estimated mean.

        No h exceeds the sum over all $d^2$ entries, so a product of `alpha` and `beta` below
        $1/d^2$ has no effect.
        """
        return MARGIN / max(self.alpha * self.beta, 1 / d**2)

    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Estimate the mean, accept an edge, complete it, and estimate the mean again."""
        self._check(W, generator)
        sizes = block_sizes(W.d, self.block_size)
        limit, trials = self.limit(W.d), 0
        while trials < PATIENCE * limit:
            # Each attempt draws its own first mean; given any first mean the draw is unbiased.
            numbers = self._draw_numbers(W.d, sizes, generator)
            if self.h == "abs" and W.device.type == "cpu" and W.factors is not None:
                found = self._attempt_on_cpu(W, sizes, numbers)
            else:
                found = self._attempt(W, sizes, numbers)
            if found is None:  # treated as Omega = 0: any law is unbiased
                return Uniform(self.block_size).sample(W, generator=generator)
            trials += found.trials
            if found.partition is not None:
                return Tournament(found.partition, found.scale, trials)
        raise BalanceError(
            f"with alpha={self.alpha:g} and beta={self.beta:g} about {limit:.3g} trials find an "
            f"edge: got none in {trials}, so Omega is less balanced. {WAY_OUT}"
        )

    def law(self, W: EdgeWeights) -> Law:
        """The law of `HRegular`; its weights are the means of those drawn here.

        Raises:
            BalanceError: If `W` is less balanced than declared.
        """
        mean = W.h_norm(self.h) / W.d**2
        largest = h_values(self.h, W.dense()).max().item()
        if largest * self.alpha * self.beta > mean * (1 + 1e-9):
            self._refuse(largest / mean, 1 / (self.alpha * self.beta))
        return HRegular(self.block_size, self.h).law(W)

    def _refuse(self, ratio: float, limit: float) -> None:
        """Raise for an h that is `ratio` times the mean."""
        raise BalanceError(
            f"with alpha={self.alpha:g} and beta={self.beta:g} no h may exceed {limit:.4g} times "
            f"its mean: got {ratio:.4g} times. {WAY_OUT}"
        )

    def _draw_numbers(self, d: int, sizes: SizeCounts, generator: torch.Generator) -> RandomNumbers:
        """All random numbers of one attempt."""
        r, most = self.num_samples, min(math.ceil(4 * self.limit(d)), MOST_TRIALS)
        device = generator.device
        edges = torch.randint(d * (d - 1), (2 * r + most,), generator=generator, device=device)
        thresholds = torch.rand(most, generator=generator, device=device, dtype=torch.float64)
        rest = _draw.permutation(d - 2, generator)
        return RandomNumbers(edges, thresholds, rest, _draw.place_of_edge(sizes, generator))

    def _attempt(self, W: EdgeWeights, sizes: SizeCounts, numbers: RandomNumbers) -> Attempt | None:
        """Try to find a partition; None if the weights count as zeros."""
        r, limit = self.num_samples, self.limit(W.d)
        edges = edges_of(numbers.edges, W.d).to(W.device)
        first = h_values(self.h, W.entries(edges[:r]))
        mean = first.sum().item() / r
        if mean < NEGLIGIBLE:
            return None
        self._check_balance(first, mean, limit)
        thresholds = numbers.thresholds.to(W.device)
        trials = 0
        parts = torch.split(edges[2 * r :], CHUNK), torch.split(thresholds, CHUNK)
        for part, u in zip(*parts, strict=True):
            values = h_values(self.h, W.entries(part))
            accepted = (u * (limit * mean) < values).nonzero()
            tried = int(accepted[0]) + 1 if len(accepted) else len(part)
            self._check_balance(values[:tried], mean, limit)
            trials += tried
            if len(accepted):
                break
        else:
            return Attempt(None, 0.0, trials)
        second = h_values(self.h, W.entries(edges[r : 2 * r]))
        i, j = part[tried - 1].tolist()
        order = _draw.completed(numbers.rest, i, j, numbers.place)
        T = Partition.from_order(order, sizes).to(W.device)
        inside = torch.cat([h_values(self.h, omega).flatten() for omega in W.blocks(T)])
        self._check_balance(torch.cat([second, inside]), mean, limit)
        scale = W.d * (W.d - 1) * (second.sum().item() / r) / inside.sum().item()
        return Attempt(T, scale, trials)

    def _check_balance(self, values: Float[Tensor, "n"], mean: float, limit: float) -> None:
        if (values > limit * mean).any():
            self._refuse(values.max().item() / mean, limit)

    def _attempt_on_cpu(
        self, W: EdgeWeights, sizes: SizeCounts, numbers: RandomNumbers
    ) -> Attempt | None:
        """`_attempt` for h = "abs", compiled."""
        from . import _balanced_cpu as cpu  # imports numba, which takes a second

        assert W.factors is not None
        A, B = (factor.detach().contiguous().numpy() for factor in W.factors)
        limit = self.limit(W.d)
        rows = [s * count for s, count in sizes]
        entries = [s * s * count for s, count in sizes]
        order, omega = torch.empty(W.d, dtype=torch.int64), torch.empty(sum(entries), dtype=W.dtype)
        outcome, trials, read, number = cpu.attempt(
            A,
            B,
            numbers.edges.cpu().numpy(),
            numbers.thresholds.cpu().numpy(),
            numbers.rest.cpu().numpy(),
            numbers.place,
            np.array(sizes),
            self.num_samples,
            limit,
            NEGLIGIBLE,
            order.numpy(),
            omega.numpy(),
        )
        W.evaluated += read
        if outcome == cpu.ZERO:
            return None
        if outcome == cpu.REFUSED:
            self._refuse(number, limit)
        if outcome == cpu.REJECTED:
            return Attempt(None, 0.0, trials)
        shapes = [(count, s) for s, count in sizes]
        cut = zip(torch.split(order, rows), shapes, strict=True)
        T = Partition(tuple(b.view(shape) for b, shape in cut))
        squares = zip(torch.split(omega, entries), shapes, strict=True)
        W.keep(T, tuple(w.view(count, s, s) for w, (count, s) in squares))
        return Attempt(T, number, trials)
