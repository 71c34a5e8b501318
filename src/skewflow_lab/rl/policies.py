"""Policies of Sec. 6.1: a recurrent world model with an affine read-out, and an affine policy."""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from skewflow.es import Moments
from skewflow.es.objective import Params
from skewflow.nn import orthogonal_

CLIP = 10.0
"""Normalised observations lie within this; a rare spike must not saturate the state for long."""

Vector = Float[np.ndarray, " n"]


class Policy(ABC):
    """Acts on observations, which it normalises by what was observed before."""

    def __init__(self, params: Params, moments: Moments | None, num_inputs: int) -> None:
        self.params = {name: p.numpy() for name, p in params.items()}
        self._mean = np.zeros(num_inputs) if moments is None else moments.mean
        self._scale = np.ones(num_inputs) if moments is None else moments.scale()

    def normalise(self, observation: Vector) -> Vector:
        """Mean 0, deviation 1, and 0 for what has never varied."""
        centred: Vector = (observation - self._mean) * self._scale
        return np.minimum(np.maximum(centred, -CLIP), CLIP)  # np.clip takes twice as long

    @abstractmethod
    def act(self, observation: Vector) -> Vector:
        """The action at the next observation of an episode."""


class Recurrent(Policy):
    """h' = tanh(W h + U o + b), and the action C h' + c; h starts at zero.

    In NumPy: for one step of one policy its matrix-vector product takes half the time of torch's.
    """

    def __init__(self, params: Params, moments: Moments | None) -> None:
        super().__init__(params, moments, params["U"].shape[1])
        self._transition = np.concatenate([self.params["W"], self.params["U"]], axis=1)
        self._hidden = len(self.params["W"])
        self._state = np.zeros(self._transition.shape[1], dtype=np.float32)  # (h, o)

    def act(self, observation: Vector) -> Vector:
        """Advance the state and read it out."""
        self._state[self._hidden :] = self.normalise(observation)
        h = np.tanh(self._transition @ self._state + self.params["b"])
        self._state[: self._hidden] = h
        action: Vector = self.params["C"] @ h + self.params["c"]
        return action


class Affine(Policy):
    """The action K o + c."""

    def __init__(self, params: Params, moments: Moments | None) -> None:
        super().__init__(params, moments, params["K"].shape[1])

    def act(self, observation: Vector) -> Vector:
        """No state: the action depends only on this observation."""
        action: Vector = self.params["K"] @ self.normalise(observation) + self.params["c"]
        return action


def make_policy(params: Params, moments: Moments | None) -> Policy:
    """The policy with these parameters, at the beginning of an episode."""
    return Recurrent(params, moments) if "W" in params else Affine(params, moments)


def recurrent_params(
    num_inputs: int,
    num_actions: int,
    hidden: int,
    *,
    orthogonal: bool,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Parameters to start from; the first actions are zero.

    Args:
        num_inputs: Entries of an observation.
        num_actions: Entries of an action.
        hidden: Entries of the state.
        orthogonal: The transition W is Haar-distributed; or uniform, as in `torch.nn.RNN`.
        generator: Source of randomness.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> params = recurrent_params(17, 6, 32, orthogonal=True, generator=g)
        >>> {name: tuple(p.shape) for name, p in params.items()}
        {'W': (32, 32), 'U': (32, 17), 'b': (32,), 'C': (6, 32), 'c': (6,)}
    """
    bound = 1 / math.sqrt(hidden)
    W = torch.empty(hidden, hidden)
    if orthogonal:
        orthogonal_(W, generator=generator)
    else:
        W.uniform_(-bound, bound, generator=generator)
    return {
        "W": W,
        "U": torch.empty(hidden, num_inputs).uniform_(-bound, bound, generator=generator),
        "b": torch.zeros(hidden),
        "C": torch.zeros(num_actions, hidden),
        "c": torch.zeros(num_actions),
    }


def affine_params(num_inputs: int, num_actions: int) -> dict[str, Tensor]:
    """Parameters of an affine policy to start from: zeros.

    Example:
        >>> {name: tuple(p.shape) for name, p in affine_params(17, 6).items()}
        {'K': (6, 17), 'c': (6,)}
    """
    return {"K": torch.zeros(num_actions, num_inputs), "c": torch.zeros(num_actions)}
