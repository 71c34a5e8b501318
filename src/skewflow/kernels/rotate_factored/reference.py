r"""Reference of `rotate_factored`: $\exp(\eta\,\Omega)X$ for $\Omega = AV^\top - VA^\top$."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..multiply_parts.reference import parts_of

LONGEST = 4.0
"""Largest norm of a step for which the series is used: its terms and their rounding grow with it.
"""

LEFT_OUT = {torch.float32: 2.0**-27, torch.float64: 2.0**-56}
"""Largest truncation error of the series, relative to the length of the step."""


class FactoredGenerator(NamedTuple):
    r"""$\Omega = LJL^\top$ with $L = [As\;\,V/s]$, whose pairs of columns are equally long.

    So L is as short as possible for $\Omega$; V is its remainder after `rest_of`. A pair with a
    column of zeros is left out.

    Args:
        L: The factors side by side.
        s: The factors of the columns of A.
        M: $L^\top L$.
        norm: A bound on the norm of M, and so of $\Omega$, in float64.
    """

    L: Float[Tensor, "*n d two_r"]
    s: Float[Tensor, "*n 1 r"]
    M: Float[Tensor, "*n two_r two_r"]
    norm: Float[Tensor, "*n"]


def factored_generator(A: Float[Tensor, "*n d r"], V: Float[Tensor, "*n d r"]) -> FactoredGenerator:
    """The generator of two factors."""
    V = rest_of(V, A)
    u, v = (torch.linalg.vector_norm(F, dim=-2, keepdim=True, dtype=torch.float64) for F in (A, V))
    both = (u > 0) & (v > 0)
    s, t = (torch.where(both, ratio.sqrt(), 0).to(A.dtype) for ratio in (v / u, u / v))
    L = torch.cat([A * s, V * t], dim=-1)
    M = L.mT @ L
    size = torch.linalg.vector_norm(M, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    N = M / torch.where(size > 0, size, 1).to(M.dtype)  # its square does not overflow
    squared = torch.linalg.vector_norm(N @ N, dim=(-2, -1), dtype=torch.float64)
    return FactoredGenerator(L, s, M, size[..., 0, 0] * squared.sqrt())


def rest_of(V: Float[Tensor, "*n d r"], A: Float[Tensor, "*n d r"]) -> Float[Tensor, "*n d r"]:
    r"""V with each column orthogonal to that of A; the parallel part adds nothing to $\Omega$.

    Near a stationary point the parallel part is almost all of V. It would make the factors, and so
    the rounding of a step and the bound on its length, as large as the gradient.
    """
    length = torch.linalg.vector_norm(A, dim=-2, keepdim=True, dtype=torch.float64)
    U = (A / torch.where(length > 0, length, 1)).to(A.dtype)
    return V - U * (U * V).sum(-2, keepdim=True)


def rotate_factored(
    X: Float[Tensor, "*n d k"],
    omega: FactoredGenerator,
    eta: Float[Tensor, "*n"],
    AX: Float[Tensor, "*n r k"] | None = None,
) -> Float[Tensor, "*n d k"]:
    r"""$\exp(\eta\,\Omega)X = X + \eta L\,\varphi(\eta JM)\,J(L^\top X)$ in $O(dkr)$.

    $J = \begin{bmatrix}0 & I\\ -I & 0\end{bmatrix}$ and $\varphi(Z) = (e^Z - 1)/Z$ of a matrix with
    2r rows, since $\Omega^n = L(JM)^{n-1}JL^\top$. $\Omega$ is skew whatever rounding its factors
    have, and $V^\top X$ is computed, not derived from $X^\top X = I$, so an error of X does not
    grow. Not in the paper; with Cayley's transform it is due to Wen and Yin (2013).

    Args:
        X: Points, or one without the first dimension, whose products are faster on a CPU.
        omega: From `factored_generator`.
        eta: At most `LONGEST` over the norm of the generator, in float64.
        AX: $A^\top X$, where it is known.
    """
    r = omega.s.shape[-1]
    M, step = omega.M, eta.to(X.dtype)[..., None, None]
    W = torch.cat([M[..., r:, :], -M[..., :r, :]], dim=-2)  # J M
    VX = omega.L[..., r:].mT @ X
    AX = omega.L[..., :r].mT @ X if AX is None else omega.s.mT * AX
    JT = torch.cat([VX, -AX], dim=-2)
    rounds = num_rounds(float((eta.abs() * omega.norm).max()), X.dtype)
    Z = step * W
    return X + omega.L @ (step * phi(Z, Z @ Z, rounds) @ JT)


def phi(
    Z: Float[Tensor, "*n s s"], Z2: Float[Tensor, "*n s s"], rounds: int
) -> Float[Tensor, "*n s s"]:
    r"""$\sum_m Z^{2m}\left(\frac{I}{(2m+1)!} + \frac{Z}{(2m+2)!}\right)$ up to m = `rounds`.

    Args:
        Z: A matrix.
        Z2: Its square.
        rounds: Number of the last pair of terms.
    """
    P = torch.zeros_like(Z)
    for m in range(rounds, -1, -1):
        a, b = coefficients(m)
        P = Z2 @ P if m < rounds else P
        P = P.add(Z, alpha=b)
        P.diagonal(dim1=-2, dim2=-1).add_(a)
    return P


def split(
    x: Float[Tensor, "*rows length"],
) -> tuple[Float[Tensor, "*rows length"], Float[Tensor, "*rows length"], Float[Tensor, "*rows"]]:
    """Two float16 parts and the unit of each row, a power of two: x is unit (high + low).

    The CUDA kernels multiply float16 parts, whose products are exact in float32; they leave out low
    times low. The largest entry of a row is between 2^14 and 2^15.
    """
    exponent = x.abs().amax(-1).frexp().exponent.clamp(min=-111)
    unit = torch.ldexp(torch.ones_like(x[..., 0]), exponent - 15)
    return *parts_of(x, unit[..., None]), unit


def coefficients(m: int) -> tuple[float, float]:
    """The coefficients of the terms 2m and 2m + 1."""
    return 1 / math.factorial(2 * m + 1), 1 / math.factorial(2 * m + 2)


def longest_for(rounds: int, dtype: torch.dtype) -> float:
    """The largest norm of a step for which this number of rounds suffices."""
    if rounds < 0:
        return -1.0
    return float((LEFT_OUT[dtype] * math.factorial(2 * rounds + 3)) ** (1 / (2 * rounds + 2)))


def num_rounds(length: float, dtype: torch.dtype) -> int:
    """The number of rounds that a step of this norm needs."""
    rounds = 0
    while longest_for(rounds, dtype) < length:
        rounds += 1
    return rounds
