"""What every sampler offers: one draw, and its law at small d."""

from abc import ABC, abstractmethod
from typing import Any

import torch

from .. import _validate
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.tournament import Law, Tournament


class Sampler(ABC):
    r"""A distribution over partitions, with the weights that make $E\hat\Omega = \Omega$ (Eq. 5).

    A sampler that goes through a sweep, or keeps a family for some steps, has state: use one for
    each matrix, and save it with `state_dict`.

    Example:
        >>> from skewflow.samplers import RoundRobin
        >>> W = EdgeWeights(torch.eye(4), torch.arange(16.0).view(4, 4))
        >>> mean = sum(p * t.dense(W) for t, p in RoundRobin().law(W))
        >>> bool(torch.allclose(mean, W.dense()))
        True
    """

    @abstractmethod
    def sample(self, W: EdgeWeights, *, generator: torch.Generator) -> Tournament:
        """Draw a subtournament of `W`; all randomness comes from `generator`."""

    @abstractmethod
    def law(self, W: EdgeWeights) -> Law:
        """Every outcome with positive probability once, with its probability; for small d.

        For a sampler with state: the law of the first draw of a sweep or refresh period.
        """

    @staticmethod
    def _check(W: EdgeWeights, generator: torch.Generator) -> None:
        """The arguments of `sample`, before any state changes."""
        if not isinstance(W, EdgeWeights):
            raise TypeError(
                f"`W` must be an EdgeWeights: got {type(W).__name__}. "
                "Make one with `EdgeWeights(X, G)`, or `EdgeWeights.of(omega)`."
            )
        _validate.generator(generator)

    def state_dict(self) -> dict[str, Any]:
        """What a saved sampler needs to go on; empty for a sampler without state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        if state:
            raise ValueError(
                f"{type(self).__name__} has no state: got the keys {sorted(state)}. "
                "Load the state into the kind of sampler that saved it."
            )
