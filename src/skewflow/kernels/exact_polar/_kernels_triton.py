"""The kernels between the products of a polar step, and their launches."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

from .._runtime._launch_triton import Launch
from ..multiply_parts._triton import Parts, store_parts, unit_for
from . import limits

BLOCK = 1024
"""Entries of a matrix that one program handles."""

SCALARS = 12
"""Rows of numbers in addition to those of the rounds; see `_decide`."""


@triton.jit
def _cut(
    Y_ptr, parts_ptr, units_ptr, X_ptr, R_ptr, size_r_ptr, size_d_ptr, lr_ptr, d, k, high, wide,
    stride_x, stride_r, LONGEST: tl.constexpr, LARGEST: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Y = X - length R; the length is lr, or less so that R and D are no longer than `LONGEST`.

    If `SPLIT`, also writes its parts (n, 2, high, wide).
    """
    programs = tl.cdiv(high * wide, BLOCK)
    matrix = (tl.program_id(0) // programs).to(tl.int64)
    block = tl.program_id(0) % programs
    entry = block * BLOCK + tl.arange(0, BLOCK)
    size_r = tl.load(size_r_ptr + matrix)
    size = tl.maximum(size_r, tl.load(size_d_ptr + matrix))
    length = tl.minimum(tl.load(lr_ptr), LONGEST / tl.maximum(size, LONGEST / LARGEST))
    row, column = (entry // wide).to(tl.int64), (entry % wide).to(tl.int64)
    there = (row < d) & (column < k)
    at_x = matrix * stride_x[0] + row * stride_x[1] + column * stride_x[2]
    at_r = matrix * stride_r[0] + row * stride_r[1] + column * stride_r[2]
    X = tl.load(X_ptr + at_x, mask=there, other=0.0)
    R = tl.load(R_ptr + at_r, mask=there, other=0.0)
    Y = X - R * length.to(tl.float32)
    tl.store(Y_ptr + matrix * d * k + row * k + column, Y, mask=there)
    if SPLIT:
        unit, scale = unit_for(1.0 + length * size_r)  # no entry of X is larger than 1
        if block == 0:
            tl.store(units_ptr + matrix, unit)
        at = parts_ptr + matrix * 2 * high * wide + entry
        store_parts(at, high * wide, Y * scale, row < high)


@triton.jit
def _decide(
    size_ptr, intervals_ptr, numbers_ptr, flags_ptr, n,
    WIDEST: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r"""Decide the iterations of each matrix, given $\|P^2\|_F$.

    The numbers are the squared factors of the rounds; the weight of Y where the step is cut;
    whether there are rounds; c; and the coefficients of $P^2$, P and I in $Q^2$, in the factor of
    $Q^2$ in the series, and in the remainder of the series. The flags say which rounds run, whether
    the step is cut, and whether the rounds end in the other buffer.
    """
    matrix = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = matrix < n
    bound = tl.sqrt(tl.load(size_ptr + matrix, mask=there, other=0.0))
    is_cut = bound > WIDEST
    cut = tl.where(is_cut, WIDEST / tl.where(is_cut, bound, 1.0), 1.0)
    bound = tl.minimum(bound, WIDEST)
    low = 1.0 / tl.sqrt(1.0 + bound)
    start = tl.zeros((BLOCK,), tl.int32)
    for j in tl.static_range(1, LAST + 1):
        start += (low >= tl.load(intervals_ptr + j)).to(tl.int32)
    needed = LAST - start
    scale = low
    for r in tl.static_range(LAST):
        live = needed > r
        factor = tl.load(intervals_ptr + LAST + 1 + tl.minimum(start + r, LAST))
        scale = tl.where(live, scale * factor, scale)
        tl.store(numbers_ptr + r * n + matrix, (scale * scale).to(tl.float32), mask=there)
        tl.store(flags_ptr + r * n + matrix, live, mask=there)
    tl.store(flags_ptr + LAST * n + matrix, is_cut, mask=there)
    tl.store(flags_ptr + (LAST + 1) * n + matrix, needed % 2 == 1, mask=there)
    some = needed > 0
    last = tl.load(intervals_ptr + LAST)
    middle = tl.sqrt((1.0 + last * last) / 2.0)
    c = tl.where(some, scale / middle, tl.sqrt(2.0 / (2.0 + bound)))
    p = c * c  # a step that is cut has rounds, and after them P is that of their result
    m = p - 1.0
    at = numbers_ptr + LAST * n + matrix
    tl.store(at, tl.sqrt(cut).to(tl.float32), mask=there)
    tl.store(at + n, some.to(tl.float32), mask=there)
    tl.store(at + 2 * n, c.to(tl.float32), mask=there)
    tl.store(at + 3 * n, (p * p).to(tl.float32), mask=there)
    tl.store(at + 4 * n, (2.0 * m * p).to(tl.float32), mask=there)
    tl.store(at + 5 * n, (m * m).to(tl.float32), mask=there)
    a, b = 35.0 / 128.0, 5.0 / 16.0
    tl.store(at + 6 * n, (a * p * p).to(tl.float32), mask=there)
    tl.store(at + 7 * n, (2.0 * a * m * p - b * p).to(tl.float32), mask=there)
    tl.store(at + 8 * n, (a * m * m - b * m).to(tl.float32), mask=there)
    a, b = 3.0 / 8.0, 1.0 / 2.0
    tl.store(at + 9 * n, (c * (a * p * p)).to(tl.float32), mask=there)
    tl.store(at + 10 * n, (c * (2.0 * a * m * p - b * p)).to(tl.float32), mask=there)
    tl.store(at + 11 * n, (c * (a * m * m - b * m) + c - 1.0).to(tl.float32), mask=there)


@triton.jit
def _blend(
    Y_ptr, X_ptr, weight_ptr, flags_ptr, d, k, stride_x,
    HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Y = X + weight (Y - X) where a flag is set; without weights Y = X."""
    programs = tl.cdiv(d * k, BLOCK)
    matrix = (tl.program_id(0) // programs).to(tl.int64)
    if tl.load(flags_ptr + matrix) == 0:
        return
    entry = (tl.program_id(0) % programs) * BLOCK + tl.arange(0, BLOCK)
    there = entry < d * k
    row, column = (entry // k).to(tl.int64), (entry % k).to(tl.int64)
    at_x = matrix * stride_x[0] + row * stride_x[1] + column * stride_x[2]
    X = tl.load(X_ptr + at_x, mask=there, other=0.0)
    at = Y_ptr + matrix * d * k + entry
    if HAS_WEIGHT:
        X += tl.load(weight_ptr + matrix) * (tl.load(at, mask=there, other=0.0) - X)
    tl.store(at, X, mask=there)


@triton.jit
def _series(
    Q2_ptr, V_ptr, T_ptr, T_parts_ptr, P_ptr, P2_ptr, long_ptr, numbers_ptr, units_ptr, n, k, wide,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The matrices of the series; if a step is not long only T, which is -P / 2.

    If `SPLIT`, also the parts (n, 2, wide, wide) of the factors and of T.
    """
    programs = tl.cdiv(wide * wide, BLOCK)
    matrix = (tl.program_id(0) // programs).to(tl.int64)
    entry = (tl.program_id(0) % programs) * BLOCK + tl.arange(0, BLOCK)
    row, column = (entry // wide).to(tl.int64), (entry % wide).to(tl.int64)
    there = (row < k) & (column < k)
    at = matrix * k * k + row * k + column
    P = tl.load(P_ptr + at, mask=there, other=0.0)
    T = -0.5 * P
    if SPLIT:
        scale = 1 / tl.load(units_ptr + matrix)
        at_parts, low, inside = matrix * 2 * wide * wide + entry, wide * wide, row < wide
    if tl.load(long_ptr + matrix) == 0:
        if not SPLIT:
            tl.store(T_ptr + at, T, mask=there)
    else:
        P2 = tl.load(P2_ptr + at, mask=there, other=0.0)
        I = tl.where((row == column) & there, 1.0, 0.0)
        own = numbers_ptr + matrix
        Q2 = tl.load(own) * P2 + (tl.load(own + n) * P + tl.load(own + 2 * n) * I)
        V = tl.load(own + 3 * n) * P2 + (tl.load(own + 4 * n) * P + tl.load(own + 5 * n) * I)
        T = tl.load(own + 6 * n) * P2 + (tl.load(own + 7 * n) * P + tl.load(own + 8 * n) * I)
        tl.store(T_ptr + at, T, mask=there)
        if SPLIT:
            store_parts(Q2_ptr + at_parts, low, Q2 * scale, inside)
            store_parts(V_ptr + at_parts, low, V * scale, inside)
        else:
            tl.store(Q2_ptr + at, Q2, mask=there)
            tl.store(V_ptr + at, V, mask=there)
    if SPLIT:  # of a long step they are written once more, after the last product
        store_parts(T_parts_ptr + at_parts, low, T * scale, inside)


def cut_of(
    Y: Float[Tensor, "n d k"],
    X: Float[Tensor, "n d k"],
    R: Float[Tensor, "n d k"],
    sizes: tuple[Float[Tensor, "n"], Float[Tensor, "n"]],
    lr: Float[Tensor, ""],
    parts: Parts | None = None,
) -> Launch:
    """The launch that takes the tangent step X - lr R, given the norms of R and D."""
    n, d, k = X.shape
    high, wide = (d, k) if parts is None else parts.values.shape[2:]
    arguments = {
        "Y_ptr": Y, "parts_ptr": None if parts is None else parts.values,
        "units_ptr": None if parts is None else parts.units, "X_ptr": X, "R_ptr": R,
        "size_r_ptr": sizes[0], "size_d_ptr": sizes[1], "lr_ptr": lr, "d": d, "k": k,
        "high": high, "wide": wide, "stride_x": X.stride(), "stride_r": R.stride(),
        "LONGEST": limits.LONGEST, "LARGEST": torch.finfo(torch.float32).max,
        "SPLIT": parts is not None, "BLOCK": BLOCK,
    }  # fmt: skip
    return Launch(_cut, n * triton.cdiv(high * wide, BLOCK), arguments)


def decide_of(
    numbers: Float[Tensor, "m n"],
    flags: Bool[Tensor, "f n"],
    size: Float[Tensor, "n"],
    intervals: Float[Tensor, "2 ends"],
) -> Launch:
    """The launch that decides what each matrix needs."""
    arguments = {
        "size_ptr": size, "intervals_ptr": intervals, "numbers_ptr": numbers, "flags_ptr": flags,
        "n": len(size), "WIDEST": limits.WIDEST, "LAST": intervals.shape[1] - 1, "BLOCK": 128,
    }  # fmt: skip
    return Launch(_decide, triton.cdiv(len(size), 128), arguments)


def blend_of(
    Y: Float[Tensor, "n d k"],
    X: Float[Tensor, "n d k"],
    weight: Float[Tensor, "n"] | None,
    flags: Bool[Tensor, "n"],
) -> Launch:
    """The launch that moves Y towards X, or copies X into Y."""
    n, d, k = Y.shape
    arguments = {
        "Y_ptr": Y, "X_ptr": X, "weight_ptr": weight, "flags_ptr": flags, "d": d, "k": k,
        "stride_x": X.stride(), "HAS_WEIGHT": weight is not None, "BLOCK": BLOCK,
    }  # fmt: skip
    return Launch(_blend, n * triton.cdiv(d * k, BLOCK), arguments)


def series_of(
    made: tuple[Tensor, Tensor, Tensor],
    P: Float[Tensor, "n k k"],
    P2: Float[Tensor, "n k k"],
    long: Bool[Tensor, "n"],
    numbers: Float[Tensor, "9 n"],
    parts: Parts | None = None,
) -> Launch:
    """The launch that makes the matrices of the series, $Q^2$, V and T.

    If there are `parts` for T the first two are parts, too, in the same units.
    """
    n, k, _ = P.shape
    wide = k if parts is None else parts.values.shape[-1]
    arguments = {
        "Q2_ptr": made[0], "V_ptr": made[1], "T_ptr": made[2],
        "T_parts_ptr": None if parts is None else parts.values, "P_ptr": P, "P2_ptr": P2,
        "long_ptr": long, "numbers_ptr": numbers,
        "units_ptr": None if parts is None else parts.units, "n": n, "k": k, "wide": wide,
        "SPLIT": parts is not None, "BLOCK": BLOCK,
    }  # fmt: skip
    return Launch(_series, n * triton.cdiv(wide * wide, BLOCK), arguments)
