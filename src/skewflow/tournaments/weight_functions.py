"""The weight function h of h-regular distributions (Definition 3.3)."""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import WeightFunctionError

WeightFunction = Callable[[Tensor], Tensor]
H = Literal["abs", "square", "sqrt"] | WeightFunction

NEGLIGIBLE = 1e-290
"""Sums of h below this value have lost digits to underflow. Samplers treat such weights as zeros:
they draw uniformly, which is unbiased for any weights."""

WEIGHT_FUNCTIONS: dict[str, WeightFunction] = {
    "abs": torch.abs,
    "square": torch.square,
    "sqrt": lambda w: w.abs().sqrt(),
}


def weight_function(h: H) -> WeightFunction:
    """The callable behind `h`: a name, or a callable that is checked (Definition 3.3).

    The definition asks for an even h with h(0) = 0. It must also be positive elsewhere: a T whose
    edges all have h = 0 is never drawn, and if their weights are not zero the estimate is biased.

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
    """The values of h on some weights, in float64: a half's square would overflow or vanish."""
    w = w.to(torch.float64)
    values = weight_function(h)(w)
    # Powers of a tiny weight may underflow: that is rounding, and not a hole of h.
    if not isinstance(h, str) and (hole := (values <= 0) & (w.abs() > 1e-50)).any():
        at = w[hole][0].item()
        raise WeightFunctionError(
            f"`h` must be positive away from zero, or the estimate is biased: got h({at:g}) <= 0. "
            "Use e.g. h='abs'."
        )
    return values


@lru_cache(maxsize=64)
def _check(h: WeightFunction) -> None:
    """Try `h` on a fixed grid of 25 magnitudes between 1e-6 and 1e6 and at zero."""
    x = torch.logspace(-6, 6, 25, dtype=torch.float64)
    plus, minus, zero = h(x), h(-x), h(torch.zeros(1, dtype=torch.float64))
    if not isinstance(plus, Tensor) or plus.shape != x.shape or not torch.isfinite(plus).all():
        raise WeightFunctionError(
            "`h` must return a tensor with one finite number for each entry: got "
            f"{_describe(plus)} for {_describe(x)}. Use entrywise torch functions."
        )
    alone = torch.cat([h(value[None]) for value in x])
    if not torch.allclose(alone, plus, rtol=1e-9, atol=0.0):
        raise WeightFunctionError(
            "`h` must map each entry by itself: its values change with the other entries. "
            "Normalise outside of h; a factor on h changes nothing."
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
