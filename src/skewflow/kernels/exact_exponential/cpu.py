r"""The exponential step of one matrix on a CPU, where the host knows the length of the step.

It takes only the products that this length needs, and scales by numbers on the host.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision
from ..polish.reference import polish_
from ..tangent import tangent_part
from ..update import LARGEST_ANGLE
from .batched import batched_step
from .series import FEW_SQUARINGS, FEW_TERMS, LARGEST_NORM, series

RANGE = {torch.float32: 1e-30, torch.float64: 1e-280}
"""Smallest norm of a square that keeps all digits; its inverse is the largest one."""

LONGEST = 2.0
r"""Largest norm of $lr\,D$ for a thin step on a CPU. Beyond it the terms of the series, their
rounding, and the normal part that rounding leaves in D grow too large."""

UNPOLISHED = 0.25
r"""Largest $\|lr^2 D^\top D\|_F / \sqrt k$ of a thin step that needs no polish."""

LEFT_OUT = {torch.float32: 5e-9, torch.float64: 1e-17}
"""Largest truncation error of the series of a thin step."""


def exponential_step_on_cpu(
    X: Float[Tensor, "d k"],
    D: Float[Tensor, "d k"],
    lr: float,
    *,
    tangent: bool = False,
    out: Tensor | None = None,
) -> tuple[Float[Tensor, "d k"], Float[Tensor, "d k"] | None]:
    """The exponential step of one matrix on a CPU; `tangent` also returns the tangent part of D.

    The tangent part is written to `out` if that is given; it may be D.
    """
    taken = direct_step(X, D, lr, tangent=tangent, out=out)
    if taken is not None:
        return taken
    Y = batched_step(X[None], D[None], lr, None)[0]
    if not tangent:
        return Y, None
    with full_precision():
        return Y, tangent_part(X, D, out=out)


def direct_step(
    X: Float[Tensor, "d k"],
    D: Float[Tensor, "d k"],
    lr: float,
    *,
    tangent: bool,
    out: Tensor | None = None,
) -> tuple[Float[Tensor, "d k"], Float[Tensor, "d k"] | None] | None:
    r"""$\exp(-lr\,\Omega)X$ and, if `tangent`, the tangent part of D in `out`, which may be D.

    Returns None where squares leave the range of the dtype or a thin step is too long; the batched
    step takes these.
    """
    d, k = X.shape
    step = _thin if 2 * k < d else _turned
    with full_precision():
        return step(X, D, lr, tangent, out)


def _turned(
    X: Tensor, D: Tensor, lr: float, tangent: bool, out: Tensor | None
) -> tuple[Tensor, Tensor | None] | None:
    """The step by the (d, d) generator."""
    S = D @ X.mT
    omega = S - S.mT
    A2 = omega @ omega
    square = _norm(A2) / math.sqrt(2)  # as in `spectral_bound`
    if not _is_in_range(square, X.dtype):
        return None
    bound = math.sqrt(square)
    norm = min(lr * bound, LARGEST_ANGLE[X.dtype])
    squarings = max(0, math.ceil(math.log2(norm / LARGEST_NORM[X.dtype]))) if norm else 0
    c = -norm / bound / 2**squarings
    E = series((omega * c)[None], A2.mul_(c * c)[None], norm <= FEW_TERMS)[0]
    for _ in range(squarings):
        E = torch.addmm(E, E, E, beta=2)
    Y = (E @ X).add_(X)  # as in the batched step
    for _ in range((squarings > 0) + (squarings > FEW_SQUARINGS)):
        polish_(Y[None])
    if not tangent:
        return Y, None
    if X.shape[0] == X.shape[1]:
        return Y, torch.addmm(D, omega, X, beta=0, alpha=0.5, out=out)
    return Y, tangent_part(X, D, out=out)


def _thin(
    X: Tensor, D: Tensor, lr: float, tangent: bool, out: Tensor | None
) -> tuple[Tensor, Tensor | None] | None:
    r"""The step in the basis of `_thin_step`, which needs only $\Omega^nX = X u_n + W u_{n-1}$.

    Here $u_{n+1} = Ku_n - Cu_{n-1}$ with $C = W^\top W = D^\top D - S^\top S$. The Newton-Schulz
    step $X - \frac12 XE$ corrects the error E of X; it is applied to the small matrices.
    """
    C = D.mT @ D
    square = _norm(C)
    if not _is_in_range(square, X.dtype) or lr * math.sqrt(square) > LONGEST:
        return None
    given, E = X.mT @ D, X.mT @ X
    E.diagonal().sub_(1)
    S = torch.addmm(given, E, given, alpha=-0.5)
    C.addmm_(S.mT, S, alpha=-1)
    K = S - S.mT
    K2 = K @ K
    length = lr * (math.sqrt(_norm(K2) / math.sqrt(2)) + math.sqrt(_norm(C)))
    if not length <= 3 * LONGEST:  # at most 2.7 times, if X is orthonormal; it may also be NaN
        return None
    F, G = _sums(K, K2, C, -lr, _num_terms(length, X.dtype))
    F.addmm_(S, G, alpha=-1)  # W is D - X S
    F = torch.addmm(F, E, F, alpha=-0.5).sub_(E, alpha=0.5)
    Y = torch.addmm(X, X, F).addmm_(D, G)
    if lr**2 * square > UNPOLISHED * math.sqrt(len(K)):
        polish_(Y[None])
    return Y, (tangent_part(X, D, given, out) if tangent else None)


def _sums(K: Tensor, K2: Tensor, C: Tensor, t: float, terms: int) -> tuple[Tensor, Tensor]:
    r"""$\sum_{0<n\le N} t^nu_n/n!$ and $\sum_{0\le n<N} t^{n+1}u_n/(n+1)!$ for N `terms`."""
    k = len(K)
    U = K.new_zeros(terms + 1, k, k)  # u_n comes before u_{n-1}, so that both are one factor
    U[terms].fill_diagonal_(1)
    torch.mul(K, t, out=U[terms - 1])
    torch.sub(K2, C, out=U[terms - 2]).mul_(t * t)
    both = torch.cat([K * t, C * (-t * t)], dim=1)
    for n in range(terms - 3, -1, -1):
        torch.mm(both, U[n + 1 : n + 3].view(2 * k, k), out=U[n])
    f = [1 / math.factorial(n) for n in range(terms + 1)]
    weights = [[*f[:0:-1], 0.0], [0.0, *(t * c for c in f[:0:-1])]]
    F, G = (K.new_tensor(weights) @ U.view(terms + 1, k * k)).view(2, k, k)
    return F, G


def _num_terms(length: float, dtype: torch.dtype) -> int:
    """The number of terms of the exponential series for a step of this norm, at least two."""
    terms, following = 2, length**3 / 6
    while following > LEFT_OUT[dtype]:
        terms += 1
        following *= length / (terms + 1)
    return terms


def _norm(A: Tensor) -> float:
    return float(torch.linalg.vector_norm(A))


def _is_in_range(square: float, dtype: torch.dtype) -> bool:
    return RANGE[dtype] <= square <= 1 / RANGE[dtype]  # false for NaN
