"""The sign of a matrix, U V^T of A = U S V^T, by products only; all rivals by signs use it."""

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Muon's polynomial (Jordan et al. 2024), which brings values above 0.002 near 1 in five rounds."""
ROUNDS = 5
CUBIC = 3
"""Newton-Schulz steps after it, which leave an error of about 1e-3 where it had left 0.3."""
EXACT = 1e-9
"""Error of the squared singular values at which `nearest` stops."""


def msign(A: Tensor) -> Tensor:
    """U V^T for the singular values above 0.002 of the norm; smaller ones stay below one."""
    a, b, c = QUINTIC
    tiny = torch.finfo(A.dtype).tiny
    Y = A / torch.linalg.matrix_norm(A, keepdim=True).clamp(min=tiny)
    for _ in range(ROUNDS):
        P = Y.mT @ Y
        Y = a * Y + Y @ (b * P + c * P @ P)
    return _newton_schulz(Y, CUBIC)


def nearest(Y: Tensor, distance: float) -> Tensor:
    """The nearest matrix with orthonormal columns.

    Args:
        Y: Tall matrices.
        distance: A bound on the distance of their singular values to 1.
    """
    if distance > 0.3:
        Y, distance = msign(Y), 0.01
    error, rounds = distance * (2 + distance), 0
    while error > EXACT:  # a step makes of e at most 3/4 e^2 + 1/4 e^3
        error, rounds = error**2 * (3 + error) / 4, rounds + 1
    return _newton_schulz(Y, rounds)


def _newton_schulz(Y: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        Y = 1.5 * Y - Y @ (Y.mT @ Y) / 2
    return Y
