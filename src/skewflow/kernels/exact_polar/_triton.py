r"""The polar step on CUDA in few launches, by one of two kinds of products.

A small kernel decides on the device everything that depends on the length of a step, and launches
that a matrix does not need end at once. The products are of float32; for large matrices they are of
float16 parts, and each matrix is split once for all its products. Only absolute errors count after
the direction, since the result is of the order of one. So most units are fixed, and the others come
from norms that a step needs anyway.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..multiply_parts._triton import Parts, empty_parts, gram_, product_of, split, split_of
from ..multiply_where._triton import multiply_where_
from ..norms import frobenius
from . import limits
from ._kernels_triton import SCALARS, blend_of, cut_of, decide_of, series_of
from .batched import gram

BOUND = 2.0
"""Bound on the entries of points and of steps that were cut. The entries are at most 8, and parts
hold four times the bound."""


def polar_step_by_parts(
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
    cut_of(Y, X, R, sizes, lr, Y_parts).once()
    P = torch.empty(n, k, k, dtype=X.dtype, device=X.device)
    gram_(P, Y_parts)
    size = frobenius(P)
    series = _inverse_root_series(X, Y, P, size, _ByParts(Y_parts, size, units))
    product_of(R, None, Y_parts, series, Y).once()
    return R, T


def nearest(
    X: Float[Tensor, "n d k"],
    R: Float[Tensor, "n d k"],
    sizes: tuple[Float[Tensor, "n"], Float[Tensor, "n"]],
    lr: Float[Tensor, ""],
) -> Float[Tensor, "n d k"]:
    """The nearest point to X - lr R by float32 products, given the norms of R and of D."""
    Y = torch.empty(X.shape, dtype=X.dtype, device=X.device)
    cut_of(Y, X, R, sizes, lr).once()
    P = gram(Y)
    return torch.baddbmm(Y, Y, _inverse_root_series(X, Y, P, frobenius(P), _ByFloat32()))


def _direction(
    X: Parts, D: Float[Tensor, "n d k"], *, tangent: bool
) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor]]:
    r"""$D - XD^\top X$, if `tangent` the tangent part of D, and the norms of the first and of D."""
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


Round = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""One Newton-Schulz step: it writes the first argument, reads the second, runs where the third is
true, and takes the squared factor of the round as fourth."""


class _Products(Protocol):
    """The products of the iteration, for the matrices of a batch that are live."""

    def read(self, Y: Tensor, live: Tensor) -> None:
        """Prepare for products with a new Y."""

    def rounds(self, Y: Tensor) -> Round:
        """The launches of the rounds between Y and a buffer, in turn."""

    def gram_(self, P: Tensor, Y: Tensor, live: Tensor) -> None:
        r"""P becomes $Y^\top Y - I$."""

    def square_(self, P2: Tensor, P: Tensor, live: Tensor) -> None:
        """P2 becomes the square of P."""

    def series(self, P: Tensor, P2: Tensor, long: Tensor, numbers: Tensor) -> Any:
        r"""T with $Z + ZT$ the polar factor, from the numbers of `_decide` from c on."""


class _ByFloat32:
    def read(self, Y: Tensor, live: Tensor) -> None:
        pass

    def rounds(self, Y: Tensor) -> Round:
        G = Y.new_empty(len(Y), Y.shape[-1], Y.shape[-1])

        def step(then: Tensor, now: Tensor, live: Tensor, c: Tensor) -> None:
            multiply_where_(G, now.mT, now, live, None, c, 0.0)
            multiply_where_(then, now, G, live, now, -0.5, 1.5)

        return step

    def gram_(self, P: Tensor, Y: Tensor, live: Tensor) -> None:
        multiply_where_(P, Y.mT, Y, live, None, 1.0, 0.0)
        P.diagonal(dim1=-2, dim2=-1).sub_(live.to(P.dtype)[:, None])

    def square_(self, P2: Tensor, P: Tensor, live: Tensor) -> None:
        multiply_where_(P2, P, P, live, None, 1.0, 0.0)

    def series(self, P: Tensor, P2: Tensor, long: Tensor, numbers: Tensor) -> Tensor:
        Q2, V, T = (torch.empty_like(P) for _ in range(3))
        series_of((Q2, V, T), P, P2, long, numbers[1:]).once()
        multiply_where_(T, Q2, V, long, T, numbers[0], 1.0)
        return T


class _ByParts:
    """Products of parts.

    Args:
        Y: The parts of the tangent steps.
        size: Bounds on the entries of P before the rounds.
        units: Memory for the units that fit `BOUND`, and that `Y` has after the first `read`.
    """

    def __init__(self, Y: Parts, size: Tensor, units: Tensor) -> None:
        n, _, k = len(units), Y.a, Y.b
        self._Y, self._units = Y, units
        self._bound: float | Tensor = size
        self._P = empty_parts(n, k, k, torch.empty_like(units))

    def read(self, Y: Tensor, live: Tensor) -> None:
        split_of(self._Y, Y, BOUND, live).once()
        self._bound = BOUND

    def rounds(self, Y: Tensor) -> Round:
        n, d, k = Y.shape
        G = empty_parts(n, k, k, self._units)
        both = [self._Y, empty_parts(n, d, k, self._units)]

        def step(then: Tensor, now: Tensor, live: Tensor, c: Tensor) -> None:
            A, B = both
            product_of(None, G, A.mT, A, None, c, live=live, symmetric=True).once()
            product_of(then, B, A, G, now, -0.5, 1.5, live=live).once()
            both.reverse()

        return step

    def gram_(self, P: Tensor, Y: Tensor, live: Tensor) -> None:
        gram_(P, self._Y, live)

    def square_(self, P2: Tensor, P: Tensor, live: Tensor) -> None:
        split_of(self._P, P, self._bound, live).once()
        product_of(P2, None, self._P, self._P, live=live, symmetric=True).once()

    def series(self, P: Tensor, P2: Tensor, long: Tensor, numbers: Tensor) -> Parts:
        n, k, _ = P.shape
        Q2, V, T_parts = (empty_parts(n, k, k, self._units) for _ in range(3))
        T = torch.empty_like(P)
        series_of((Q2.values, V.values, T), P, P2, long, numbers[1:], T_parts).once()
        product_of(None, T_parts, Q2, V, T, numbers[0], live=long, symmetric=True).once()
        return T_parts


def _inverse_root_series(
    X: Float[Tensor, "n d k"],
    Y: Float[Tensor, "n d k"],
    P: Float[Tensor, "n k k"],
    size: Float[Tensor, "n"],
    products: _Products,
) -> Any:
    r"""T with Z + Z T the polar factor of Y; Y is overwritten by Z.

    Args:
        X: Points.
        Y: Tangent steps, contiguous; long ones are changed by Newton-Schulz rounds.
        P: $Y^\top Y - I$, contiguous; overwritten.
        size: Its norms.
        products: The kind of products.
    """
    intervals = limits.intervals(X.dtype, X.device)
    n, last = len(Y), intervals.shape[1] - 1
    long = size > limits.longest_for_one_term(X)
    P2 = torch.zeros_like(P)
    products.square_(P2, P, long)
    numbers = torch.empty(last + SCALARS, n, dtype=torch.float32, device=Y.device)
    flags = torch.empty(last + 2, n, dtype=torch.bool, device=Y.device)
    decide_of(numbers, flags, frobenius(P2), intervals).once()
    blend_of(Y, X, numbers[last], flags[last]).once()
    products.read(Y, flags[0])
    _take_rounds(Y, numbers, flags, products)
    products.read(Y, flags[0])
    products.gram_(P, Y, flags[0])
    products.square_(P2, P, flags[0])
    return products.series(P, P2, long, numbers[last + 2 :])


def _take_rounds(
    Y: Float[Tensor, "n d k"],
    numbers: Float[Tensor, "m n"],
    flags: Bool[Tensor, "f n"],
    products: _Products,
) -> None:
    """Take the Newton-Schulz steps that long steps need."""
    last = len(flags) - 2
    other, step = torch.empty_like(Y), products.rounds(Y)
    now, then = Y, other
    for r in range(last):
        step(then, now, flags[r], numbers[r])
        now, then = then, now
    blend_of(Y, other, None, flags[last + 1]).once()
