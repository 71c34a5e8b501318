r"""Rotations of one block inside a CUDA kernel, as $E = \Gamma(A) - I$ for a small skew A.

The products are of TF32 triples, as exact as float32 and much faster.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

SMALL_NORM = tl.constexpr(0.25)
"""Below it six terms of the series are exact in float32: 0.25^7 / 5040 is 1e-8."""

LARGEST_CAYLEY = tl.constexpr(512.0)
"""Larger norms are cut to this one. The inverse has an error of eps times the norm. One polish
reduces it to the rounding of float32 at this norm, but not at 4096."""


@triton.jit
def product(A, B):
    return tl.dot(A, B, input_precision="tf32x3")


@triton.jit
def exponential(A, norm):
    r"""$\exp(A) - I$, orthogonal to rounding: six terms for a small A, else `far`."""
    if norm < SMALL_NORM:
        A2 = product(A, A)
        A3 = product(A2, A)
        E = A + (A2 / 2 + (A3 / 6 + product(A3, A / 24 + A2 / 120 + A3 / 720)))
    else:
        E = far(A, norm)
    return E


@triton.jit
def polish(E):
    """One Newton-Schulz step, R - R (R^T R - I) / 2, brings R = I + E back to orthogonal."""
    F = E + tl.trans(E) + product(tl.trans(E), E)
    return E - 0.5 * (F + product(E, F))


@triton.jit
def far(A, norm):
    r"""$\exp(A) - I$ by scaling to norm 1/2, eight terms of the series, and squaring back.

    Each squaring would double the distance to a rotation, and many would overflow, so a polish
    follows each. The norm is finite.
    """
    squarings = 0
    while norm > 0.5:
        norm *= 0.5
        A *= 0.5
        squarings += 1
    A2 = product(A, A)
    A3 = product(A2, A)
    A4 = product(A2, A2)
    # The term A4 / 24 is added outside the product: there it needs no identity matrix.
    tail = product(A4, A / 120 + A2 / 720 + A3 / 5040 + A4 / 40320)
    E = polish(A + (A2 / 2 + (A3 / 6 + (A4 / 24 + tail))))
    for _ in range(squarings):
        E = polish(2 * E + product(E, E))
    return E


@triton.jit
def cayley(A, norm, S: tl.constexpr):
    r"""$(I - H)^{-1}(I + H) - I = 2 (I - H)^{-1} H$ with H = A / 2, by Newton's iteration.

    For skew H, $(I - H)(I + H) = I - H^2$ has its spectrum in $[1, 1 + |H|^2]$, so that
    $Z = \alpha (I + H)$ starts with the residual $|H|^2 / (2 + |H|^2) < 1$, squared in each round.
    """
    lane = tl.arange(0, S)
    eye = (lane[:, None] == lane[None, :]).to(tl.float32)
    H = A * (0.5 * LARGEST_CAYLEY / tl.maximum(norm, LARGEST_CAYLEY))
    norm = tl.minimum(norm, LARGEST_CAYLEY)
    square = 0.25 * norm * norm
    Z = (eye + H) * (2.0 / (2.0 + square))
    residual = square / (2.0 + square)
    rounds = 0
    while (residual > 1e-8) & (rounds < 30):
        Z = 2 * Z - product(Z, Z - product(H, Z))
        residual *= residual
        rounds += 1
    return 2 * product(Z, H)
