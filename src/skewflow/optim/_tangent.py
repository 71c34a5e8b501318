"""The tangent part of a direction, as all exact steps keep it in the momentum."""

import torch
from jaxtyping import Float
from torch import Tensor


def tangent_part(
    X: Float[Tensor, "*n d k"],
    D: Float[Tensor, "*n d k"],
    S: Float[Tensor, "*n k k"] | None = None,
    out: Tensor | None = None,
) -> Float[Tensor, "*n d k"]:
    r"""$D - X\,\mathrm{sym}(X^\top D)$ in $O(dk^2)$, in the precision of the context.

    `tangent_project` would wait for the device to check what it is given.

    Args:
        X: Points, or one without the first dimension, whose products are faster on a CPU.
        D: Directions.
        S: $X^\top D$, where it is known.
        out: Memory for the result, which may be that of D.
    """
    S = X.mT @ D if S is None else S
    add = torch.addmm if X.ndim == 2 else torch.baddbmm
    return add(D, X, S + S.mT, alpha=-0.5, out=out)
