r"""The exact step of a weight whose rows are split (Eq. 4, and the polar step).

$X^\top D$ and the Gram matrices are sums over rows, of k x k numbers; the rest multiplies the rows
of a process by what every process has computed from these sums.
"""

import math
from collections.abc import Generator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import NonFiniteError
from ...geometry.precision import full_precision
from ...kernels.exact_exponential.batched import LARGEST_THIN_ANGLE
from ...kernels.exact_exponential.series import expm_minus_identity, spectral_bound
from ...kernels.exact_polar.limits import LONGEST, WIDEST
from ...kernels.norms import frobenius
from .rounds import Groups, Request, Sum

Sub = Generator[Request, Sequence[Tensor], Any]
"""A part of the steps of a weight, used by ``yield from``."""


def polar_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    S: Float[Tensor, "n k k"],
    norm: Float[Tensor, "n"],
    lr: float,
    groups: Groups,
) -> Sub:
    r"""The point nearest to $X - lr\,(D - X D^\top X)$, as `kernels.exact_polar` finds it.

    Args:
        X: The rows of the points on this process.
        D: The same rows of the directions.
        S: $X^\top D$ over all rows.
        norm: A bound on the norm of each direction.
        lr: Step size.
        groups: The processes that have the other rows.
    """
    with full_precision():
        R = torch.baddbmm(D, X, S.mT, alpha=-1)
        length = (LONGEST / (2 * norm).clamp(min=LONGEST / torch.finfo(X.dtype).max)).clamp(max=lr)
        Y = X - R * length.to(X.dtype)[:, None, None]
        P = yield from gram(Y, groups)
        bound = frobenius(P @ P).sqrt()
        cut = (WIDEST / bound).clamp(max=1)
        Y = torch.lerp(X, Y, cut.sqrt().to(X.dtype)[:, None, None])
        return orthonormal(Y, P * cut[:, None, None], bound.clamp(max=WIDEST))


def thin_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    S: Float[Tensor, "n k k"],
    norm: Float[Tensor, "n"],
    lr: float,
    groups: Groups,
) -> Sub:
    r"""$\exp(-lr\,\Omega)X$ in the basis of X and $W = (I - XX^\top)D$, as `exact_exponential`.

    The arguments are those of `polar_step`. Rounding of the basis is corrected at the end.
    """
    with full_precision():
        k = X.shape[-1]
        size = torch.where(norm > 0, norm, 1).to(X.dtype)[:, None, None]
        D, S = D / size, S / size
        K = S - S.mT
        W = torch.baddbmm(D, X, S, alpha=-1)
        (C,) = yield [Sum(lower(W.mT @ W), groups)]
        C = symmetric(C, k)
        c = frobenius(C).sqrt()
        bound = spectral_bound(K @ K) + c
        c = torch.where(c > 0, c, 1).to(X.dtype)[:, None, None]
        I = torch.eye(k, dtype=X.dtype, device=X.device).expand_as(K)
        top, bottom = torch.cat([K, -C / c], dim=-1), torch.cat([c * I, torch.zeros_like(K)], -1)
        B = torch.cat([top, bottom], dim=-2)
        most = LARGEST_THIN_ANGLE[X.dtype]
        angle = -(lr * norm.double()).clamp(max=most)
        E, _ = expm_minus_identity(B, B @ B, angle, bound, most)
        Y = torch.baddbmm(X, X, E[:, :k, :k]).baddbmm_(W / c, E[:, k:, :k])
        P = yield from gram(Y, groups)
        return orthonormal(Y, P, frobenius(P))


def gram(Y: Float[Tensor, "n d k"], groups: Groups) -> Sub:
    r"""$Y^\top Y - I$ over all rows, in float64; the lower half of it is added up."""
    (P,) = yield [Sum(lower(Y.mT @ Y), groups)]
    P = symmetric(P, Y.shape[-1]).double()
    P.diagonal(dim1=-2, dim2=-1).sub_(1)
    return P


def orthonormal(
    Y: Float[Tensor, "n d k"], P: Float[Tensor, "n k k"], bound: Float[Tensor, "n"]
) -> Float[Tensor, "n d k"]:
    r"""$Y (I + P)^{-1/2}$ for a float64 P whose spectral norm is at most `bound`.

    It runs the coupled Newton-Schulz iteration in float64 (Higham 2008, Eq. 6.35), for as many
    rounds as the least eigenvalue $1 / (1 + b)$ needs.

    Raises:
        NonFiniteError: In every process, if the bound is not finite.
    """
    most = float(bound.max())
    if not math.isfinite(most):
        raise NonFiniteError(
            "the products of a sharded weight must be finite: they hold NaN or overflow, because "
            "something other than its optimiser has written to it. Load orthogonal weights."
        )
    scale = 1 / (1 + most)
    I = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device).expand_as(P)
    A, Z = (I + P) * scale, I
    for _ in range(_num_rounds(scale * (1 - min(most, 0.5)))):
        T = (3 * I - Z @ A) / 2
        A, Z = A @ T, T @ Z
    root = Z * math.sqrt(scale)
    return torch.baddbmm(Y, Y, (root - I).to(Y.dtype))


def _num_rounds(least: float) -> int:
    r"""Rounds after which $m \leftarrow m (3 - m)^2 / 4$ has brought `least` to 1 in float64."""
    rounds = 2
    while 1 - least > 1e-5:
        least, rounds = least * (3 - least) ** 2 / 4, rounds + 1
    return rounds


def lower(A: Float[Tensor, "n k k"]) -> Float[Tensor, "n m"]:
    """The lower halves of symmetric matrices, with their diagonals."""
    i, j = torch.tril_indices(A.shape[-1], A.shape[-1], device=A.device)
    return A[:, i, j]


def symmetric(half: Float[Tensor, "n m"], k: int) -> Float[Tensor, "n k k"]:
    """The inverse of `lower`."""
    i, j = torch.tril_indices(k, k, device=half.device)
    A = half.new_empty(half.shape[0], k, k)
    A[:, i, j] = A[:, j, i] = half
    return A
