"""What evolution strategies evaluate: a plain function, or one with seeds and observations."""

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
"""Of the parameters alone; returns a number, or a tensor of one element."""


@dataclass(frozen=True)
class Outcome:
    """What one evaluation gave (not in the paper).

    Args:
        value: The function's value.
        steps: What the evaluation cost, in any unit: steps of a simulation, say.
        observed: Moments of what was observed on the way; merged over a generation, they are handed
            to every evaluation of the next one.

    Example:
        >>> Outcome(3.5).steps
        1
    """

    value: float
    steps: int = 1
    observed: Moments | None = None


class Objective(ABC):
    """A function of parameters that draws random numbers or observes something.

    A plain function of the parameters needs no class: `minimize` takes it as it is. The result must
    depend on the arguments alone: then it does not matter which process evaluates it, and a task
    that was lost can be done again. It must be picklable to be sent to worker processes; what
    cannot be pickled is best made at the first evaluation. Not in the paper.

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
            params: Parameters by name: copies for this evaluation alone, which it may change.
            seed: All randomness comes from here.
            moments: What was observed in the generations before, or None in the first.
        """

    def score(self, params: Params, seed: int, moments: Moments | None) -> Outcome:
        """The value to report, where it is another one than the one to optimise."""
        return self.evaluate(params, seed, moments)


@dataclass(frozen=True)
class Function(Objective):
    """A plain function of the parameters as an `Objective`."""

    f: PlainFunction

    def evaluate(self, params: Params, seed: int, moments: Moments | None) -> Outcome:
        """Call it."""
        value = self.f(dict(params))
        try:
            return Outcome(float(value))
        except (TypeError, ValueError):
            kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
            raise TypeError(
                f"the function must return one number: got {kind!r:.80}. Sum, or take the mean."
            ) from None


def as_objective(f: PlainFunction | Objective) -> Objective:
    """`f` itself, or wrapped if it is a plain function."""
    if isinstance(f, Objective):
        return f
    if not callable(f):
        raise TypeError(
            f"`f` must be a function of the parameters or an Objective: got {type(f).__name__}."
        )
    return Function(f)


def is_finite(value: float) -> bool:
    """`value` is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)
