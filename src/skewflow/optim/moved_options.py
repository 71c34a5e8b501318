"""Errors for options that had other names or places before the first release."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

Init = TypeVar("Init", bound=Callable[..., None])

MOVED = {
    "natural": "natural steps are the optimiser `NaturalSGD`",
    "guard_every": "it is `check_every` now",
}
"""The replacement of an option."""


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
