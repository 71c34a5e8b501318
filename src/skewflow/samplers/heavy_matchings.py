"""Dynamic domains: a family of heavy matchings that is rebuilt regularly (Sec. 3.2.2, 9.7)."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from .. import _validate
from ..errors import SamplingError
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.families import Family
from ..tournaments.matchings import METHODS, heavy_matchings, matching_partition
from ..tournaments.tournament import Law, Tournament
from ..tournaments.weight_functions import H, weight_function
from .base import Sampler
from .importance import Importance


@dataclass
class HeavyMatchings(Sampler):
    r"""Importance sampling on a family of matchings, heaviest first (Sec. 3.2.2).

    The family is rebuilt from the current weights every `refresh` draws. In between only the
    probabilities follow $\Omega$. The estimate is unbiased at each step, because the family is
    fixed before the draw and holds every edge. Each step reads all of $\Omega$, so this sampler is
    for cases in which $\Omega$ is cheap or a small variance is worth the cost.

    Args:
        method: How `heavy_matchings` builds the family: "exact", "greedy" or "locally-heaviest".
        refresh: Number of draws between two rebuilds.
        by: "optimal", or a weight function h, as in `Importance`.

    Example:
        >>> W = EdgeWeights(torch.eye(4), torch.arange(16.0).view(4, 4))
        >>> t = HeavyMatchings().sample(W, generator=torch.Generator().manual_seed(0))
        >>> t.partition.sizes
        (2, 2)
    """

    method: Literal["exact", "greedy", "locally-heaviest"] = "greedy"
    refresh: int = 100
    by: Literal["optimal"] | H = "optimal"
    _family: Family | None = field(default=None, init=False, repr=False, compare=False)
    _age: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _validate.one_of(self.method, METHODS, "method")
        _validate.count(self.refresh, "refresh")
        if self.by != "optimal":
            weight_function(self.by)

    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Draw a matching, after a rebuild of the family if one is due."""
        self._check(W, generator)
        if self._family is not None and self._family.d != W.d:
            raise SamplingError(
                f"this sampler holds matchings of d={self._family.d} rows: got d={W.d}. "
                "Use one sampler for each matrix."
            )
        if self._family is None or self._age >= self.refresh:
            self._family, self._age = heavy_matchings(W, self.method), 0
        t = Importance(self._family, self.by).sample(W, generator=generator)
        self._age += 1
        return t

    def law(self, W: EdgeWeights) -> Law:
        """The law of a draw after a rebuild from `W`."""
        return Importance(heavy_matchings(W, self.method), self.by).law(W)

    def state_dict(self) -> dict[str, Any]:
        """The pairs (m, 2) of each matching, d, and the number of draws since the rebuild."""
        family = self._family
        pairs = None if family is None else [T.edges() for T in family]
        return {"pairs": pairs, "d": 0 if family is None else family.d, "age": self._age}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a saved family."""
        if not isinstance(state, dict) or set(state) != {"pairs", "d", "age"}:
            raise ValueError(
                f"the state of HeavyMatchings has the keys 'age', 'd' and 'pairs': got "
                f"{sorted(state) if isinstance(state, dict) else state!r}. "
                "Load the state that this kind of sampler saved."
            )
        d, pairs = int(state["d"]), state["pairs"]
        self._family = None if pairs is None else Family(matching_partition(p, d) for p in pairs)
        self._age = int(state["age"])
