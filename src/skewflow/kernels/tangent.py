"""The tangent part of a direction, dense or in factors; it is the momentum of exact steps."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.precision import full_precision


def tangent_part(
    X: Float[Tensor, "*n d k"],
    D: Float[Tensor, "*n d k"],
    S: Float[Tensor, "*n k k"] | None = None,
    out: Tensor | None = None,
) -> Float[Tensor, "*n d k"]:
    r"""$D - X\,\mathrm{sym}(X^\top D)$ in $O(dk^2)$, in the precision of the context.

    `tangent_project` would wait for the device, because it checks its arguments.

    Args:
        X: Points, or one without the first dimension, whose products are faster on a CPU.
        D: Directions.
        S: $X^\top D$, where it is known.
        out: Memory for the result; it may be D.
    """
    S = X.mT @ D if S is None else S
    add = torch.addmm if X.ndim == 2 else torch.baddbmm
    return add(D, X, S + S.mT, alpha=-0.5, out=out)


def tangent_factors(
    X: Float[Tensor, "n d k"],
    A: Float[Tensor, "n d r"],
    B: Float[Tensor, "n k r"],
    V: Float[Tensor, "n d r"] | None = None,
    AX: Float[Tensor, "n r k"] | None = None,
) -> tuple[Float[Tensor, "n d 2r"], Float[Tensor, "n k 2r"]]:
    r"""Factors of $AB^\top - X\,\mathrm{sym}(X^\top AB^\top)$, which has twice the rank.

    With $P = X^\top A$ and $V = XB$ it is $(A - \frac12 XP)B^\top - \frac12 VP^\top$.

    Args:
        X: Points.
        A: Left factors.
        B: Right factors.
        V: The products X B, if they are known.
        AX: The products $A^\top X$, likewise.
    """
    with full_precision():
        V = X @ B if V is None else V
        P = X.mT @ A if AX is None else AX.mT
        return torch.cat([A - X @ P / 2, V / -2], dim=-1), torch.cat([B, P], dim=-1)
