"""Fields with reference solutions by scipy, and a sampler that plays a given matching."""

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from helpers import randn, random_skew
from skewflow.flows import Brockett, Field
from skewflow.samplers import RoundRobin, Sampler
from skewflow.tournaments import Tournament, round_robin


class Play(Sampler):
    """The matchings of the round robin in a given order, again and again, with its weight."""

    def __init__(self, members):
        self.members = list(members)
        self.now = 0

    def sample(self, W, *, generator):
        family = round_robin(W.d)
        member = self.members[self.now % len(self.members)]
        self.now += 1
        return Tournament(family[member], float(len(family)))

    def law(self, W):
        return RoundRobin().law(W)


def symmetric(d, generator):
    A = randn(d, d, generator=generator)
    return (A + A.mT) / 2


def brockett(side, generator, d=4):
    weights = torch.linspace(1.0, 0.2, d, dtype=torch.float64)
    return Brockett(symmetric(d, generator), weights, side)


def driven(side, generator, d=4):
    """A field that depends on the time and the point, and is the gradient of nothing."""
    A, B = (random_skew(d, generator=generator) for _ in range(2))

    def omega(t: float, X: Tensor) -> Tensor:
        S = X @ B @ X.mT
        return np.cos(3 * t) * A + (S - S.mT) / 2

    return Field(omega, side)


FIELDS = {"brockett": brockett, "driven": driven}


def solution(field: Field, X0: Tensor, t0: float, t1: float) -> Tensor:
    """The flow at t1 by scipy's eighth-order method, with X as a plain vector."""

    def slope(t: float, x: np.ndarray) -> np.ndarray:
        X = torch.from_numpy(x.reshape(X0.shape))
        omega = field(t, X)
        return (omega @ X if field.side == "left" else X @ omega).numpy().ravel()

    start = X0.numpy().ravel()
    result = solve_ivp(slope, (t0, t1), start, method="DOP853", rtol=1e-13, atol=1e-13)
    return torch.from_numpy(result.y[:, -1].reshape(X0.shape))
