"""The weight function h of h-regular distributions (Definition 3.3)."""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import WeightFunctionError

WeightFunction = Callable[[Tensor], Tensor]
"""A function that maps a tensor entry by entry."""

H = Literal["abs", "square", "sqrt"] | WeightFunction
"""A weight function, or the name of one in `WEIGHT_FUNCTIONS`."""

NEGLIGIBLE = 1e-290
"""Sums of h below this value may have lost digits to underflow (float64 has full precision down to
2e-308). Samplers treat such weights as zeros and draw uniformly, which is always unbiased."""

WEIGHT_FUNCTIONS: dict[str, WeightFunction] = {
    "abs": torch.abs,
    "square": torch.square,
    "sqrt": lambda w: w.abs().sqrt(),
}
"""The weight functions that have a name."""


def weight_function(h: H) -> WeightFunction:
    """The weight function with the name `h`, or `h` itself after a check (Definition 3.3).

    The definition requires an even h with h(0) = 0. It must also be positive elsewhere: a T whose
    edges all have h = 0 is never drawn, and the estimate is biased unless their weights are zero.

    Args:
        h: "abs", "square", "sqrt", or a function that maps a tensor entry by entry.

    Example:
        >>> weight_function("sqrt")(torch.tensor([-4.0, 0.0, 9.0]))
        tensor([2., 0., 3.])
    """
    if isinstance(h, str):
        if h not in WEIGHT_FUNCTIONS:
            names = ", ".join(repr(name) for name in sorted(WEIGHT_FUNCTIONS))
            raise WeightFunctionError(f"`h` must be a function or one of {names}: got {h!r}.")
        return WEIGHT_FUNCTIONS[h]
    if not callable(h):
        raise WeightFunctionError(
            f"`h` must be a name or a function of a tensor: got {type(h).__name__}. "
            "Use h='abs', or a function such as `lambda w: w.abs() ** 1.5`."
        )
    _check(h)
    return h


def h_values(h: H, w: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """H of each weight, in float64, because squares of half precisions overflow or underflow."""
    w = w.to(torch.float64)
    values = weight_function(h)(w)
    # Powers of a tiny weight may underflow; that is rounding and no zero of h.
    if not isinstance(h, str) and (zeros := (values <= 0) & (w.abs() > 1e-50)).any():
        at = w[zeros][0].item()
        raise WeightFunctionError(
            f"`h` must be positive away from zero, or the estimate is biased: got h({at:g}) <= 0. "
            "Use e.g. h='abs'."
        )
    return values


@lru_cache(maxsize=64)
def _check(h: WeightFunction) -> None:
    """Check `h` on a grid of 25 magnitudes between 1e-6 and 1e6 and at zero."""
    x = torch.logspace(-6, 6, 25, dtype=torch.float64)
    plus, minus, zero = h(x), h(-x), h(torch.zeros(1, dtype=torch.float64))
    if not isinstance(plus, Tensor) or plus.shape != x.shape or not torch.isfinite(plus).all():
        raise WeightFunctionError(
            "`h` must return a tensor with one finite number for each entry: got "
            f"{_describe(plus)} for {_describe(x)}. Use entrywise torch functions."
        )
    one_by_one = torch.cat([h(value[None]) for value in x])
    if not torch.allclose(one_by_one, plus, rtol=1e-9, atol=0.0):
        raise WeightFunctionError(
            "`h` must map each entry independently: its values change with the other entries. "
            "Do not normalise in h; a constant factor on h changes nothing."
        )
    uneven = ~torch.isclose(plus, minus, rtol=1e-9, atol=0.0)
    if uneven.any():
        at = x[uneven][0].item()
        raise WeightFunctionError(
            f"`h` must be even: got h({at:g}) = {plus[uneven][0].item():g} but "
            f"h({-at:g}) = {minus[uneven][0].item():g}. Use a function of |w|."
        )
    if zero.item() != 0.0:
        raise WeightFunctionError(
            f"`h` must be zero at zero: got h(0) = {zero.item():g}. Subtract h(0)."
        )
    if (plus <= 0).any():
        at = x[plus <= 0][0].item()
        raise WeightFunctionError(
            f"`h` must be positive away from zero, or the estimate is biased: got "
            f"h({at:g}) = {plus[plus <= 0][0].item():g}. Use e.g. h='abs'."
        )


def _describe(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    finite = "" if torch.isfinite(value).all() else " not finite"
    return f"shape {tuple(value.shape)}{finite}"
