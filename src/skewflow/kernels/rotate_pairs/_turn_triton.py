"""Cosines and sines inside a CUDA kernel, and the rows that turn by them."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from .._runtime._device_triton import raise_flag


@triton.jit
def turn(theta, present, flags_ptr, param, CAYLEY: tl.constexpr):
    """Cosine minus one and sine; an angle that is not finite rotates nothing and is reported."""
    good = tl.abs(theta) < float("inf")
    raise_flag(flags_ptr, param, tl.max((present & (good == 0)).to(tl.int32), axis=0) > 0)
    half = tl.where(good, 0.5 * theta, 0.0)
    if CAYLEY:
        sine = 2.0 * half / (1.0 + half * half)
        lost = -half * sine
    else:
        s = tl.sin(half)
        sine = 2.0 * s * tl.cos(half)
        lost = -2.0 * s * s
    # Rounded one by one, cosine and sine would change lengths by a few units in the last place of
    # every step: the excess of their squares over 1 is the remaining rounding.
    l, s = lost.to(tl.float64), sine.to(tl.float64)
    excess = (0.5 * (l * (2.0 + l) + s * s)).to(theta.dtype)
    return lost - (1.0 + lost) * excess, sine - sine * excess


@triton.jit
def rotate(Xi, Xj, lost, sine):
    """The rows i and j of some pairs, turned."""
    return Xi + (lost * Xi + sine * Xj), Xj + (lost * Xj - sine * Xi)


@triton.jit
def rotate_finite(Mi, Mj, lost, sine):
    """The rotated new momentum of the rows i and j; entries that are not finite stay so.

    They do not affect the other row: such rows are not rotated, but zero times infinity is NaN.
    """
    i, j = tl.abs(Mi) < float("inf"), tl.abs(Mj) < float("inf")
    Ni, Nj = rotate(tl.where(i, Mi, 0.0), tl.where(j, Mj, 0.0), lost, sine)
    return tl.where(i, Ni, Mi), tl.where(j, Nj, Mj)
