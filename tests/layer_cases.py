"""Every layer with an input, for the tests that all of them have to pass."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from skewflow.nn import (
    GivensLinear,
    OrthogonalConv2d,
    OrthogonalLinear,
    OrthogonalODE,
    OrthogonalRNN,
    OrthogonalRNNCell,
    SylvesterFlow,
)


@dataclass(frozen=True)
class Case:
    """How to build a layer, the shape of its input, and its marked weight, if it has one."""

    layer: Callable[..., nn.Module]
    arguments: tuple
    input_shape: tuple[int, ...]
    weight: str | None = "weight"

    def build(self, dtype=torch.float32, seed=0):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.layer(*self.arguments, dtype=dtype)

    def input(self, dtype=torch.float32, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.input_shape, generator=generator).to(dtype)


CASES = {
    "tall": Case(OrthogonalLinear, (6, 10), (7, 6)),
    "wide": Case(OrthogonalLinear, (10, 6), (7, 10)),
    "conv": Case(OrthogonalConv2d, (3, 8, 3), (2, 3, 6, 6)),
    "pointwise": Case(OrthogonalConv2d, (4, 9, 1), (2, 4, 3, 3)),
    "cell": Case(OrthogonalRNNCell, (3, 8), (5, 3), "weight_hh"),
    "rnn": Case(OrthogonalRNN, (3, 8), (4, 5, 3), "cell.weight_hh"),
    "rnn tanh": Case(OrthogonalRNN, (3, 8, "tanh", True), (5, 4, 3), "cell.weight_hh"),
    "sylvester": Case(SylvesterFlow, (6, 4), (5, 6), "Q"),
    "ode": Case(OrthogonalODE, (6, 2), (2, 5, 6)),
    "ode strang": Case(partial(OrthogonalODE, method="strang"), (5, 2), (3, 5)),
    "givens": Case(GivensLinear, (7, 12), (2, 5, 7), None),
}
MARKED = {name: case for name, case in CASES.items() if case.weight}


def outputs(layer, x):
    """What a layer returns, as a tuple."""
    y = layer(x)
    return y if isinstance(y, tuple) else (y,)
