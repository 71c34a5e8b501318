"""The interface of samplers: draw an estimate, and list all outcomes at small d."""

from abc import ABC, abstractmethod
from typing import Any

import torch

from .. import _validate
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.tournament import Law, Tournament


class Sampler(ABC):
    r"""A distribution over partitions, with the weights that make $E\hat\Omega = \Omega$ (Eq. 5).

    A sampler that plays sweeps, or keeps a family for several steps, has state: use one sampler for
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
        """All outcomes of positive probability, each once, with their probabilities; for small d.

        A sampler with state gives the law of the first draw of a sweep or refresh period.
        """

    @staticmethod
    def _check(W: EdgeWeights, generator: torch.Generator) -> None:
        """Check the arguments of `sample` before any state changes."""
        if not isinstance(W, EdgeWeights):
            raise TypeError(
                f"`W` must be an EdgeWeights: got {type(W).__name__}. "
                "Make one with `EdgeWeights(X, G)`, or `EdgeWeights.of(omega)`."
            )
        _validate.generator(generator)

    def state_dict(self) -> dict[str, Any]:
        """The state to save; empty for a sampler without state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        if state:
            raise ValueError(
                f"{type(self).__name__} has no state: got the keys {sorted(state)}. "
                "Load the state into the kind of sampler that saved it."
            )
