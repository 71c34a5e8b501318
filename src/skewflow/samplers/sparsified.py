"""Matchings of a sparsified graph (the remark on graph sparsification of Sec. 9.7.3)."""

from collections import Counter
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb, factorial, prod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import _validate
from ..tournaments.edge_weights import EdgeWeights, edge_from_index
from ..tournaments.matchings import greedy_colours, matching_partition
from ..tournaments.theory.enumeration import check_size
from ..tournaments.tournament import Law, Tournament
from ..tournaments.weight_functions import NEGLIGIBLE, H, h_values, weight_function
from . import _draw
from .base import Sampler


@dataclass(frozen=True)
class Sparsified(Sampler):
    r"""One matching of r edges that are drawn by weight (Sec. 9.7.3).

    It is for s = 2. It draws r edges independently, e with probability $p_e$; an edge drawn c times
    has the unbiased estimate $v_e = \frac{c}{r p_e} w_e$. The drawn edges are split into greedy
    matchings, heaviest $|v|$ first, and one is taken with probability
    $p_m \propto \sqrt{\sum_{e\in m} v_e^2}$; its edges have the weight $\frac{c}{r p_e p_m}$.
    A draw reads r entries of $\Omega$ if h is None; otherwise it reads the row sums of h and r
    rows, in $O(rdk)$.

    Args:
        num_edges: r, the number of draws.
        h: Draw with $p_e \propto h(w_e)$; None draws all edges with the same probability.

    Example:
        >>> W = EdgeWeights(torch.eye(6), torch.arange(36.0).view(6, 6))
        >>> t = Sparsified(num_edges=4).sample(W, generator=torch.Generator().manual_seed(0))
        >>> t.partition.d, W.evaluated <= 2 * 4
        (6, True)
    """

    num_edges: int
    h: H | None = None

    def __post_init__(self) -> None:
        _validate.count(self.num_edges, "num_edges")
        if self.h is not None:
            weight_function(self.h)

    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Draw edges, split them into matchings and take one of these."""
        self._check(W, generator)
        _validate.block_size(2, W.d)
        edges, multiplicity = self._draw_edges(W, generator)
        w = W.entries(edges)
        matchings = _split(W.d, edges, w, multiplicity / (self.num_edges * self._p(W, w)))
        if not matchings:  # Omega is 0 on all drawn edges, and so is the estimate
            return Tournament(matching_partition(edges[:1], W.d), 0.0)
        norms = torch.tensor([m.norm for m in matchings], dtype=torch.float64)
        r = int(_draw.categorical(norms, 1, generator))
        return _tournament(W, matchings[r], float(norms[r] / norms.sum()))

    def law(self, W: EdgeWeights) -> Law:
        """All multisets of r edges with all their matchings."""
        n, r = W.num_edges, self.num_edges
        check_size(comb(n + r - 1, r), f"the multisets of {r} of {n} edges")
        all_edges = edge_from_index(torch.arange(n), W.d).to(W.device)
        all_w = W.entries(all_edges)
        p = self._p(W, all_w)
        law: Law = []
        for draw in combinations_with_replacement(range(n), r):
            counts = Counter(draw)
            index = torch.tensor(sorted(counts))
            c = torch.tensor([float(counts[i]) for i in sorted(counts)], dtype=torch.float64)
            ways = factorial(r) / prod(factorial(k) for k in counts.values())
            p_draw = ways * (p[index] ** c).prod().item()
            if p_draw == 0:
                continue
            matchings = _split(W.d, all_edges[index], all_w[index], c / (r * p[index]))
            if not matchings:
                law.append((Tournament(matching_partition(all_edges[index][:1], W.d), 0.0), p_draw))
            total = sum(matching.norm for matching in matchings)
            for matching in matchings:
                p_m = matching.norm / total
                law.append((_tournament(W, matching, p_m), p_draw * p_m))
        return law

    def _draw_edges(
        self, W: EdgeWeights, generator: torch.Generator
    ) -> tuple[Int[Tensor, "m 2"], Float[Tensor, "m"]]:
        """Distinct edges (i, j), i < j, and how often each was drawn."""
        r, d = self.num_edges, W.d
        if self.h is None or W.h_norm(self.h) < NEGLIGIBLE:
            index = torch.randint(W.num_edges, (r,), generator=generator, device=generator.device)
            edges = edge_from_index(index, d).to(W.device)
        else:
            i = _draw.categorical(W.row_sums(self.h), r, generator)
            rows = (h_values(self.h, W.row(int(a))) for a in i)
            j = torch.cat([_draw.categorical(row, 1, generator) for row in rows])
            edges = torch.stack([i, j], dim=-1).sort(dim=-1).values
        distinct, counts = torch.unique(edges, dim=0, return_counts=True)
        return distinct, counts.to(torch.float64)

    def _p(self, W: EdgeWeights, w: Float[Tensor, "m"]) -> Float[Tensor, "m"]:
        """The probability that a single draw gives an edge of weight w, for each entry of `w`."""
        if self.h is None or W.h_norm(self.h) < NEGLIGIBLE:
            return torch.full_like(w, 1 / W.num_edges, dtype=torch.float64)
        return 2 * h_values(self.h, w) / W.h_norm(self.h)


class _Matching(NamedTuple):
    """Disjoint edges, the factor on the weight of each, and the relative norm of the products."""

    edges: Int[Tensor, "_ 2"]
    factor: Float[Tensor, "_"]
    norm: float


def _split(
    d: int, edges: Int[Tensor, "m 2"], w: Float[Tensor, "m"], factor: Float[Tensor, "m"]
) -> list[_Matching]:
    """Greedy matchings of the drawn edges of nonzero weight, heaviest first."""
    v = (factor * w).abs()
    v = v / v.max()  # only ratios of norms matter, and squares of tiny weights underflow
    keep = v > 0
    edges, factor, v = edges[keep], factor[keep], v[keep]
    order = v.sort(descending=True, stable=True).indices
    edges, factor, v = edges[order], factor[order], v[order]
    colours = torch.tensor(greedy_colours([(i, j) for i, j in edges.tolist()], d), device=v.device)
    if not len(colours):
        return []
    order = colours.sort(stable=True).indices
    split = torch.bincount(colours).tolist()
    parts = zip(*(torch.split(x[order], split) for x in (edges, factor, v)), strict=True)
    return [_Matching(e, f, u.norm().item()) for e, f, u in parts]


def _tournament(W: EdgeWeights, matching: _Matching, p: float) -> Tournament:
    partition = matching_partition(matching.edges, W.d)
    weights = (matching.factor / p).to(W.dtype)[:, None, None].expand(-1, 2, 2)
    others = [
        torch.ones(len(b), 1, 1, dtype=W.dtype, device=W.device) for b in partition.blocks[1:]
    ]
    return Tournament(partition, (weights, *others))
