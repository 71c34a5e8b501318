"""Errors for options that had other names or places before the first release."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from ..samplers import (
    Balanced,
    HeavyMatchings,
    HRegular,
    Optimal,
    RelabelledRoundRobin,
    RoundRobin,
    Sampler,
)

Init = TypeVar("Init", bound=Callable[..., None])

MOVED = {
    "natural": "natural steps are the optimiser `NaturalSGD`",
    "guard_every": "it is `check_every` now",
}
"""The replacement of an option."""

MOVED_SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "round_robin": RoundRobin,
    "relabelled_round_robin": RelabelledRoundRobin,
    "h_regular": HRegular,
    "balanced": Balanced,
    "optimal": Optimal,
    "heavy_matchings": lambda s: HeavyMatchings(),
}
"""Samplers that once had a name, which drew blocks of the group's size; saved states hold it."""


def refuse_moved(names: Iterable[str]) -> None:
    """Raise for an option that has moved."""
    for name in names:
        if name in MOVED:
            raise TypeError(f"`{name}` is not an option any more: {MOVED[name]}.")


def says_what_moved(init: Init) -> Init:
    """A constructor whose errors name the replacement of options that have moved."""

    @wraps(init)
    def made(*args: Any, **options: Any) -> None:
        refuse_moved(options)
        init(*args, **options)

    return made  # type: ignore[return-value]
