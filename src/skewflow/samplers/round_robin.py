"""Sweeps through a non-intersecting family, with every plane once per sweep (Sec. 3.2)."""

from dataclasses import dataclass, field
from typing import Any

import torch

from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.families import non_intersecting
from ..tournaments.tournament import Law, Tournament
from . import _draw
from ._sweep import Sweep
from .base import Sampler
from .uniform import Uniform


class _SweepSampler(Sampler):
    """A sampler whose state is its place in a sweep."""

    _sweep: Sweep

    def state_dict(self) -> dict[str, Any]:
        """The state of the sweep."""
        return self._sweep.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a saved sweep."""
        self._sweep.load_state_dict(state)


@dataclass
class RoundRobin(_SweepSampler):
    r"""Members of the fixed non-intersecting family, uniformly; weight n, its size (Sec. 3.2).

    For s = 2 these are the d - 1 (odd d: d) matchings of the circle method, in the given row order.
    By default each sweep plays every member once, in a new random order. Each draw is unbiased by
    itself, though not given the earlier draws of its sweep, and the mean of m draws of a sweep has
    the variance $(n/m - 1)\|\Omega\|_F^2$ instead of $\frac{n-1}{m}\|\Omega\|_F^2$ (not in the
    paper). No entry of $\Omega$ is read.

    Args:
        block_size: 2, or a size for which `non_intersecting` has a family.
        replacement: Draw each member independently instead of in sweeps.

    Example:
        >>> W = EdgeWeights(torch.eye(4), torch.arange(16.0).view(4, 4))
        >>> g, sampler = torch.Generator().manual_seed(0), RoundRobin()
        >>> sweep = [sampler.sample(W, generator=g).partition.key() for _ in range(3)]
        >>> len(set(sweep))
        3
    """

    block_size: int = 2
    replacement: bool = field(default=False, kw_only=True)
    _sweep: Sweep = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._sweep = Sweep(f"round robin of blocks of {self.block_size}")

    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Draw the next member in O(d)."""
        self._check(W, generator)
        family = non_intersecting(W.d, self.block_size)
        n = len(family)
        if self.replacement:
            r = int(_draw.uniform(generator) * n)
        else:
            order, now = self._sweep.next(W.d, length=n, order_size=n, generator=generator)
            r = int(order[now])
        return Tournament(family[r].to(W.device), float(n))

    def law(self, W: EdgeWeights) -> Law:
        """The n members, each with probability 1/n."""
        family = non_intersecting(W.d, self.block_size)
        n = len(family)
        return [(Tournament(T.to(W.device), float(n)), 1 / n) for T in family]


@dataclass
class RelabelledRoundRobin(_SweepSampler):
    r"""The round robin under a random relabelling of the rows, one per sweep (not in the paper).

    A relabelled matching is a uniform matching, so *each* step by itself has exactly the law of
    `Uniform`, but no plane occurs twice in a sweep. It needs one permutation every n steps, where
    `Uniform` needs one per step.

    Args:
        block_size: 2, or a size for which `non_intersecting` has a family.

    Example:
        >>> W = EdgeWeights(torch.eye(4), torch.arange(16.0).view(4, 4))
        >>> t = RelabelledRoundRobin().sample(W, generator=torch.Generator().manual_seed(0))
        >>> t.partition.sizes, t.weights
        ((2, 2), 3.0)
    """

    block_size: int = 2
    _sweep: Sweep = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._sweep = Sweep(f"relabelled round robin of blocks of {self.block_size}")

    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Draw the next relabelled member in O(d)."""
        self._check(W, generator)
        family = non_intersecting(W.d, self.block_size)
        n = len(family)
        order, now = self._sweep.next(W.d, length=n, order_size=W.d, generator=generator)
        partition = family[now].to(order.device).relabel(order)
        return Tournament(partition.to(W.device), float(n))

    def law(self, W: EdgeWeights) -> Law:
        """The law of `Uniform`."""
        return Uniform(self.block_size).law(W)
