"""The polar step on CUDA by products of float16 parts: that of `optim`, for large matrices.

Each matrix is split once for all its products, by what makes it: the split points are read by up to
three, the tangent steps by two. Only absolute errors count after the direction, since the result is
of the order of one: so most units are fixed, and the others come from norms that a step needs.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ._polar_triton import SCALARS, blend_of, cut_of, decide_of, series_of
from .multiply_parts._triton import Parts, empty_parts, product_of, split_of

BOUND = 2.0
"""Of points, and of all that comes from steps that were cut: at most 8 in fact, and 16 fits."""


class Limits(NamedTuple):
    """What a step is cut to, and up to where its parts suffice.

    Args:
        step: Frobenius norm to which the tangent step is cut.
        one_term: Largest norm of P for one term of the series.
        intervals: What the rounds go through, and their factors.
        widest: Largest bound on the norm of P: what is longer is cut.
    """

    step: float
    one_term: float
    intervals: Float[Tensor, "2 ends"]
    widest: float


def polar_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: Float[Tensor, ""],
    limits: Limits,
    *,
    tangent: bool,
) -> tuple[Float[Tensor, "n d k"], Float[Tensor, "n d k"] | None]:
    """See `polar_step` of `optim`."""
    n, d, k = X.shape
    units = torch.empty(n, dtype=X.dtype, device=X.device)
    X_parts = _split(X, BOUND, units)
    R, T, sizes = _direction(X_parts, D, tangent=tangent)
    Y, Y_parts = torch.empty_like(R), empty_parts(n, d, k, torch.empty_like(units))
    cut_of(Y, X, R, sizes, lr, limits.step, Y_parts).once()
    P = torch.empty(n, k, k, dtype=X.dtype, device=X.device)
    _gram(P, Y_parts)
    size = _norm(P)
    T_parts = _inverse_root_series(X, Y, Y_parts, P, size, units, limits)
    product_of(R, None, Y_parts, T_parts, Y).once()
    return R, T


def polish_(X: Float[Tensor, "n d k"]) -> None:
    """See `polish_` of `optim`: its products are as exact as these, not those of cuBLAS."""
    n, _, k = X.shape
    units = torch.empty(n, dtype=X.dtype, device=X.device)
    X_parts = _split(X, BOUND, units)
    E = torch.empty(n, k, k, dtype=X.dtype, device=X.device)
    _gram(E, X_parts)
    E_parts = _split(E, _norm(E), torch.empty_like(units))
    out = X if X.is_contiguous() else torch.empty(X.shape, dtype=X.dtype, device=X.device)
    product_of(out, None, X_parts, E_parts, X, -0.5).once()
    if out is not X:
        X.copy_(out)


def _direction(
    X: Parts, D: Float[Tensor, "n d k"], *, tangent: bool
) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor]]:
    r"""$D - XD^\top X$, the tangent part of D if asked for, and the norms of the first and of D."""
    n, d, k = D.shape
    size = _norm(D)
    D_parts = _split(D, size, torch.empty_like(X.units))
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
    return R, T, (_norm(R), size)


def _inverse_root_series(
    X: Float[Tensor, "n d k"],
    Y: Float[Tensor, "n d k"],
    Y_parts: Parts,
    P: Float[Tensor, "n k k"],
    size: Float[Tensor, "n"],
    units: Float[Tensor, "n"],
    limits: Limits,
) -> Parts:
    r"""The parts of what `inverse_root_series` of `_polar_triton` gives; Y, too, is changed alike.

    Args:
        X: Points.
        Y: Tangent steps.
        Y_parts: Their parts.
        P: $Y^\top Y - I$; overwritten.
        size: Its norms.
        units: Those that fit what is below `BOUND`.
        limits: Of the step.
    """
    n, k = len(P), P.shape[-1]
    last = limits.intervals.shape[1] - 1
    long = size > limits.one_term
    P_parts, P2 = empty_parts(n, k, k, torch.empty_like(units)), torch.zeros_like(P)
    _square(P2, P_parts, P, size, long)
    numbers = torch.empty(last + SCALARS, n, dtype=torch.float32, device=X.device)
    flags = torch.empty(last + 2, n, dtype=torch.bool, device=X.device)
    decide_of(numbers, flags, _norm(P2), limits.intervals, limits.widest).once()
    blend_of(Y, X, numbers[last], flags[last]).once()
    _rounds(Y, Y_parts, units, numbers, flags)
    _gram(P, Y_parts, flags[0])
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


def _gram(P: Tensor, Y: Parts, live: Tensor | None = None) -> None:
    product_of(P, None, Y.mT, Y, live=live, symmetric=True, minus_identity=True).once()


def _square(P2: Tensor, parts: Parts, P: Tensor, bound: float | Tensor, live: Tensor) -> None:
    """P times P, which is symmetric, through its parts."""
    split_of(parts, P, bound, live).once()
    product_of(P2, None, parts, parts, live=live, symmetric=True).once()


def _split(A: Float[Tensor, "n a b"], bound: float | Tensor, units: Tensor) -> Parts:
    """The parts of matrices, in the order in which they lie in memory."""
    if A.stride(-1) != 1 and A.stride(-2) == 1:
        return _split(A.mT, bound, units).mT
    n, a, b = A.shape
    parts = empty_parts(n, a, b, units)
    split_of(parts, A, bound).once()
    return parts


def _norm(A: Float[Tensor, "n a b"]) -> Float[Tensor, "n"]:
    """In float64, where squares do not overflow."""
    return torch.linalg.vector_norm(A, dim=(-2, -1), dtype=torch.float64)
