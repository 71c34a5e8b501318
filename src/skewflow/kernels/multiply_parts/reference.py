"""Reference of products of parts: in plain torch, sums in float64."""

import torch
from jaxtyping import Float
from torch import Tensor


def multiply_parts(
    A: Float[Tensor, "n a b"],
    B: Float[Tensor, "n b c"],
    bounds: tuple[Float[Tensor, "n"], Float[Tensor, "n"]],
    C: Float[Tensor, "n a c"] | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Float[Tensor, "n a c"]:
    r"""$\alpha AB + \beta C$ of factors that are split, without the product of their low parts.

    Not in the paper: Ootomo and Yokota (2022) recover float32 on tensor cores this way.

    Args:
        A: Left factors, float32.
        B: Right factors, float32.
        bounds: No entry of the factors is larger than four times its bound.
        C: What is added.
        alpha: Factor of the products.
        beta: Factor of `C`.
    """
    unit, other = (unit_for(bound)[:, None, None] for bound in bounds)
    high, low = (part.double() for part in parts_of(A, unit))
    right, rest = (part.double() for part in parts_of(B, other))
    product = alpha * unit.double() * other.double() * (high @ right + high @ rest + low @ right)
    return product if C is None else product + beta * C.double()


def parts_of(x: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Two float16 parts: x is unit (high + low), up to 2^-24 of it, or 2^-25 of the unit.

    So their products are exact in float32.

    Args:
        x: Float32 numbers, at most 2^16 units.
        unit: A power of two, or one for each.
    """
    scaled = x / unit
    high = scaled.half()
    return high, (scaled - high).half()


def unit_for(bound: Tensor) -> Tensor:
    """The power of two in whose units the bound is between 2^13 and 2^14."""
    exponent = bound.float().frexp().exponent.clamp(min=-112)
    return torch.ldexp(torch.ones_like(bound, dtype=torch.float32), exponent - 14)
