"""`blocks_by_angle` in numba, for the Gram matrices that the loops of `rotate_blocks` add up."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, call-arg"

import math

import numpy as np
from numba import njit, prange

from .._runtime.numba_loops import Loops, kept
from ..rotate_blocks._exponential_cpu import _combine, _product
from .reference import SOFTNESS, Angle, planes_of
from .sign import NUM_CUBIC, NUM_QUINTIC, QUINTIC

A5, B5, C5 = QUINTIC


def grams_by_angle_(S: np.ndarray, d: int, k: int, blocks: int, angle: Angle) -> None:
    r"""Scale $S_B = D_BX_B^\top$ in place so that $S - S^\top$ is one radian.

    Args:
        S: (n l, s, s), in float64; rows beyond those of a block are zero.
        d: Rows of each matrix.
        k: Columns.
        blocks: l, how many blocks a matrix has.
        angle: "rms" or "spectral".
    """
    small, larger = divmod(d, blocks)
    planes = larger * planes_of(small + 1, k) + (blocks - larger) * planes_of(small, k)
    if angle == "rms":
        _scale(S, blocks, math.sqrt(2 * planes))
    elif planes_of(small + (larger > 0), k) == 1:
        _soften(S, blocks, planes)
    else:
        _signs(S.size * 10 * S.shape[1], S, blocks, small, larger, k)


def _soften(S: np.ndarray, blocks: int, planes: int) -> None:
    """The soft sign of blocks that turn one plane each."""
    squares = np.square(S - S.swapaxes(1, 2)).sum((1, 2)).reshape(-1, blocks) / 2
    mean = squares.sum(1, keepdims=True) / planes
    mean[mean == 0] = 1
    scale = np.sqrt((1 + SOFTNESS**2) / (squares + SOFTNESS**2 * mean))
    S *= scale.reshape(-1, 1, 1)


@kept
def _scale(S, blocks, length):
    """Scale the blocks of each matrix by one number, so that their norm becomes `length`."""
    for first in range(0, S.shape[0], blocks):
        largest = 0.0
        squares = 0.0
        for block in range(first, first + blocks):
            for i in range(S.shape[1]):
                for j in range(i):
                    largest = max(largest, abs(S[block, i, j] - S[block, j, i]))
        if largest > 0:
            for block in range(first, first + blocks):
                for i in range(S.shape[1]):
                    for j in range(i):
                        entry = (S[block, i, j] - S[block, j, i]) / largest
                        squares += 2 * entry * entry
            S[first : first + blocks] *= length / (largest * math.sqrt(squares))


@njit
def _sign(A, planes):
    """Half of `sign`, because the caller forms S - S^T."""
    largest, squares = 0.0, 0.0
    for i in range(A.shape[0]):
        for j in range(i):
            largest = max(largest, abs(A[i, j]))
    if largest == 0:
        return A
    for i in range(A.shape[0]):
        for j in range(i):
            squares += (A[i, j] / largest) ** 2
    Y = _combine(1 / (largest * math.sqrt(squares)), A, 0.0, A, 0.0, A, 0.0)
    if planes > 1:
        for _ in range(NUM_QUINTIC):
            Y2 = _product(Y, Y)
            P = _combine(-B5, Y2, C5, _product(Y2, Y2), 0.0, Y2, 0.0)
            Y = _combine(A5, Y, 1.0, _product(Y, P), 0.0, Y, 0.0)
        for _ in range(NUM_CUBIC):
            Y = _combine(1.5, Y, 0.5, _product(Y, _product(Y, Y)), 0.0, Y, 0.0)
    return _combine(0.5, Y, 0.0, Y, 0.0, Y, 0.0)


@Loops
def _signs(S, blocks, small, larger, k):
    for number in prange(S.shape[0]):
        rows = small + (number % blocks < larger)
        A = _combine(1.0, S[number], -1.0, S[number].T, 0.0, S[number], 0.0)
        S[number] = _sign(A, min(rows // 2, k))
