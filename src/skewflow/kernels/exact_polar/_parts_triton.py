"""The polar step on CUDA by products of float16 parts: for large matrices.

Each matrix is split once for all its products, by what makes it: the split points are read by up to
three, the tangent steps by two. Only absolute errors count after the direction, since the result is
of the order of one: so most units are fixed, and the others come from norms that a step needs.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..multiply_parts._triton import Parts, empty_parts, gram_, product_of, split, split_of
from ..norms import frobenius
from . import limits
from ._triton import SCALARS, blend_of, cut_of, decide_of, series_of

BOUND = 2.0
"""Of points, and of all that comes from steps that were cut: at most 8 in fact, and 16 fits."""


def polar_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: Float[Tensor, ""],
    *,
    tangent: bool,
) -> tuple[Float[Tensor, "n d k"], Float[Tensor, "n d k"] | None]:
    """See `dispatch.polar_step`."""
    n, d, k = X.shape
    units = torch.empty(n, dtype=X.dtype, device=X.device)
    X_parts = split(X, BOUND, units)
    R, T, sizes = _direction(X_parts, D, tangent=tangent)
    Y, Y_parts = torch.empty_like(R), empty_parts(n, d, k, torch.empty_like(units))
    cut_of(Y, X, R, sizes, lr, limits.LONGEST, Y_parts).once()
    P = torch.empty(n, k, k, dtype=X.dtype, device=X.device)
    gram_(P, Y_parts)
    size = frobenius(P)
    T_parts = _inverse_root_series(X, Y, Y_parts, P, size, units)
    product_of(R, None, Y_parts, T_parts, Y).once()
    return R, T


def _direction(
    X: Parts, D: Float[Tensor, "n d k"], *, tangent: bool
) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor]]:
    r"""$D - XD^\top X$, the tangent part of D if asked for, and the norms of the first and of D."""
    n, d, k = D.shape
    size = frobenius(D)
    D_parts = split(D, size, torch.empty_like(X.units))
    S = empty_parts(n, k, k, D_parts.units)  # no entry is larger than the norm of D
    product_of(None, S, X.mT, D_parts).once()
    R = torch.empty(n, d, k, dtype=D.dtype, device=D.device)
    product_of(R, None, X, S.mT, D, -1.0).once()
    T = None
    if tangent and d == k:
        T = R / 2
    elif tangent:  # D - X (S + S^T) / 2
        T = torch.lerp(D, R, 0.5, out=torch.empty_like(R))
        product_of(T, None, X, S, T, -0.5).once()
    return R, T, (frobenius(R), size)


def _inverse_root_series(
    X: Float[Tensor, "n d k"],
    Y: Float[Tensor, "n d k"],
    Y_parts: Parts,
    P: Float[Tensor, "n k k"],
    size: Float[Tensor, "n"],
    units: Float[Tensor, "n"],
) -> Parts:
    r"""The parts of what `inverse_root_series` of `_polar_triton` gives; Y, too, is changed alike.

    Args:
        X: Points.
        Y: Tangent steps.
        Y_parts: Their parts.
        P: $Y^\top Y - I$; overwritten.
        size: Its norms.
        units: Those that fit what is below `BOUND`.
    """
    n, k = len(P), P.shape[-1]
    intervals = limits.intervals(X.dtype, X.device)
    last = intervals.shape[1] - 1
    long = size > limits.longest_for_one_term(X)
    P_parts, P2 = empty_parts(n, k, k, torch.empty_like(units)), torch.zeros_like(P)
    _square(P2, P_parts, P, size, long)
    numbers = torch.empty(last + SCALARS, n, dtype=torch.float32, device=X.device)
    flags = torch.empty(last + 2, n, dtype=torch.bool, device=X.device)
    decide_of(numbers, flags, frobenius(P2), intervals, limits.WIDEST).once()
    blend_of(Y, X, numbers[last], flags[last]).once()
    _rounds(Y, Y_parts, units, numbers, flags)
    gram_(P, Y_parts, flags[0])
    _square(P2, P_parts, P, BOUND, flags[0])
    Q2, V, T_parts = (empty_parts(n, k, k, units) for _ in range(3))
    T = torch.empty_like(P)
    series_of((Q2.values, V.values, T), P, P2, long, numbers[last + 3 :], T_parts).once()
    c = numbers[last + 2]
    product_of(None, T_parts, Q2, V, T, c, live=long, symmetric=True).once()
    return T_parts


def _rounds(
    Y: Float[Tensor, "n d k"],
    Y_parts: Parts,
    units: Float[Tensor, "n"],
    numbers: Float[Tensor, "m n"],
    flags: Bool[Tensor, "f n"],
) -> None:
    """The Newton-Schulz steps that long steps need."""
    n, d, k = Y.shape
    last = len(flags) - 2
    G, other_parts = empty_parts(n, k, k, units), empty_parts(n, d, k, units)
    other = torch.empty_like(Y)
    now, then = (Y, Y_parts), (other, other_parts)
    split_of(Y_parts, Y, BOUND, flags[0]).once()
    for r in range(last):
        (M, M_parts), (next_M, next_parts) = now, then
        live = flags[r]
        product_of(None, G, M_parts.mT, M_parts, None, numbers[r], live=live, symmetric=True).once()
        product_of(next_M, next_parts, M_parts, G, M, -0.5, 1.5, live=live).once()
        now, then = then, now
    blend_of(Y, other, None, flags[last + 1]).once()
    split_of(Y_parts, Y, BOUND, flags[0]).once()


def _square(P2: Tensor, parts: Parts, P: Tensor, bound: float | Tensor, live: Tensor) -> None:
    """P times P, which is symmetric, through its parts."""
    split_of(parts, P, bound, live).once()
    product_of(P2, None, parts, parts, live=live, symmetric=True).once()
