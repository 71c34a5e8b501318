"""Objectives of evolution strategies: plain functions, or objects with seeds and observations."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .moments import Moments

Params = Mapping[str, Tensor]
"""Parameters by name."""

PlainFunction = Callable[[dict[str, Tensor]], Any]
"""A function of the parameters that returns a number or a tensor of one element."""


@dataclass(frozen=True)
class Outcome:
    """The result of one evaluation (not in the paper).

    Args:
        value: The value of the function.
        steps: The cost of the evaluation, in any unit, such as steps of a simulation.
        observed: Moments of the observations; they are merged over a generation and passed to every
            evaluation of the next one.

    Example:
        >>> Outcome(3.5).steps
        1
    """

    value: float
    steps: int = 1
    observed: Moments | None = None


class Objective(ABC):
    """A function of parameters that draws random numbers or makes observations.

    `minimize` also takes a plain function of the parameters. The result must depend only on the
    arguments, so that any process can evaluate it and a lost task can be repeated. An objective is
    pickled to be sent to worker processes; create attributes that cannot be pickled at the first
    evaluation (not in the paper).

    Example:
        >>> import torch
        >>> class Noisy(Objective):
        ...     def evaluate(self, params, seed, moments):
        ...         noise = torch.randn((), generator=torch.Generator().manual_seed(seed))
        ...         return Outcome(float(params["x"].square().sum() + noise))
        >>> Noisy().evaluate({"x": torch.zeros(2)}, 0, None).value
        1.5409960746765137
    """

    @abstractmethod
    def evaluate(self, params: Params, seed: int, moments: Moments | None) -> Outcome:
        """The value at these parameters.

        Args:
            params: Parameters by name; they are copies, which the evaluation may change.
            seed: The seed of all random numbers of this evaluation.
            moments: Moments of the observations of earlier generations; None in the first.
        """

    def score(self, params: Params, seed: int, moments: Moments | None) -> Outcome:
        """The value to report, if it differs from the value to optimise."""
        return self.evaluate(params, seed, moments)


@dataclass(frozen=True)
class Function(Objective):
    """A plain function of the parameters as an `Objective`."""

    f: PlainFunction

    def evaluate(self, params: Params, seed: int, moments: Moments | None) -> Outcome:
        """Call the function."""
        value = self.f(dict(params))
        try:
            return Outcome(float(value))
        except (TypeError, ValueError):
            kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
            raise TypeError(
                f"the function must return one number: got {kind!r:.80}. Sum, or take the mean."
            ) from None


def as_objective(f: PlainFunction | Objective) -> Objective:
    """`f` itself, or a plain function wrapped as an `Objective`."""
    if isinstance(f, Objective):
        return f
    if not callable(f):
        raise TypeError(
            f"`f` must be a function of the parameters or an Objective: got {type(f).__name__}."
        )
    return Function(f)


def is_finite(value: float) -> bool:
    """Whether `value` is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)
