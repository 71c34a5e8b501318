"""Importance sampling on a given non-intersecting family (Lemma 3.2, Lemma 9.7)."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import FamilyError
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.families import Family
from ..tournaments.partition_weights import family_sums
from ..tournaments.tournament import Law, Tournament
from ..tournaments.weight_functions import NEGLIGIBLE, H, weight_function
from . import _draw
from .base import Sampler


@dataclass(frozen=True)
class Importance(Sampler):
    r"""Members of a family with $p_T \propto \sqrt{\sum_{e\in T} w_e^2}$, the variance-optimal law.

    The weight is $1/p_T$ because M = J (Lemma 3.2). If `by` is a weight function, the law is the
    h-regular one on the family, $p_T \propto h(G_T)$; ``by="abs"`` is that of Lemma 9.7. A draw
    reads all of $\Omega$ in $O(d^2 k)$.

    Args:
        family: A non-intersecting family on the rows of `W`.
        by: "optimal", or a weight function h.

    Example:
        >>> from skewflow.tournaments import round_robin
        >>> W = EdgeWeights(torch.eye(4), torch.arange(16.0).view(4, 4))
        >>> t = Importance(round_robin(4)).sample(W, generator=torch.Generator().manual_seed(0))
        >>> t.partition.sizes
        (2, 2)
    """

    family: Family
    by: Literal["optimal"] | H = "optimal"

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family):
            raise FamilyError(
                f"`family` must be a Family: got {type(self.family).__name__}. "
                "Wrap a list of partitions as `Family(partitions)`."
            )
        if self.by != "optimal":
            weight_function(self.by)

    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Draw a member; costs O(d^2) once Omega is known."""
        self._check(W, generator)
        p = self._probabilities(W)
        r = int(_draw.categorical(p, 1, generator))
        return Tournament(self.family[r].to(W.device), 1 / p[r].item())

    def law(self, W: EdgeWeights) -> Law:
        """All members of positive probability."""
        p = self._probabilities(W).tolist()
        return [
            (Tournament(T.to(W.device), 1 / p_T), p_T)
            for T, p_T in zip(self.family, p, strict=True)
            if p_T > 0
        ]

    def _probabilities(self, W: EdgeWeights) -> Float[Tensor, "n"]:
        if self.family.d != W.d:
            raise FamilyError(
                f"`family` must be one of the d={W.d} rows of this tournament: got one of "
                f"{self.family.d} rows."
            )
        if self.by == "optimal":
            sums = family_sums(W, self.family, "square")
        else:
            sums = family_sums(W, self.family, self.by)
        if sums.sum() < NEGLIGIBLE:  # treated as Omega = 0: any law is unbiased
            sums = torch.ones_like(sums)
        sums = sums.sqrt() if self.by == "optimal" else sums
        return sums / sums.sum()
