"""The polar step on a CPU, where the host knows the length and skips unneeded products."""

import math
from bisect import bisect_right

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision, is_exact
from ..tangent import tangent_part
from . import limits
from .batched import cut_step, nearest

FAR = 1e60
"""Norms above this one count as this one, because Python raises for powers that overflow."""


def polar_step_on_cpu(
    X: Tensor,
    D: Tensor,
    lr: float,
    tangent: bool,
    out: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Float[Tensor, "*n d k"], Float[Tensor, "*n d k"] | None]:
    """`polar_step` on a CPU, for a batch or a single matrix.

    A single matrix has faster products in torch than a batch of one. The results are written to
    `out` if it is given; it may be `X` and `D`.
    """
    if not is_exact(X):
        with full_precision():
            return _step(X, D, lr, tangent, out)
    return _step(X, D, lr, tangent, out)


def _step(
    X: Tensor, D: Tensor, lr: float, tangent: bool, outs: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    one, (out, out_tangent) = X.ndim == 2, outs
    multiply, add = (torch.mm, torch.addmm) if one else (torch.bmm, torch.baddbmm)
    S = multiply(X.mT, D)
    # A wide weight lies transposed, and so should R: a pass over two layouts takes longer.
    R = add(D, X, S.mT, alpha=-1, out=torch.empty_like(X) if one else None)
    Y = walk(X, R, D, lr)
    T = None
    if tangent:
        square = X.shape[-2] == X.shape[-1]
        T = torch.mul(R, 0.5, out=out_tangent) if square else tangent_part(X, D, S, out_tangent)
    return nearest_on_cpu(X, Y, out), T


def walk(X: Tensor, R: Tensor, D: Tensor, lr: float) -> Tensor:
    """X - lr R, cut to `limits.LONGEST` if it is longer."""
    short = lr * limits.SHORTEST[X.dtype] <= 1  # whatever has a norm of zero is
    if short:
        short = lr * float(torch.linalg.vector_norm(D)) <= limits.LONGEST
    return X.sub(R, alpha=lr) if short else cut_step(X, R, D, lr)


def nearest_on_cpu(X: Tensor, Y: Tensor, out: Tensor | None = None) -> Tensor:
    """The polar factor of tangent steps from X, by the terms of the series that they need."""
    one = X.ndim == 2
    multiply, add = (torch.mm, torch.addmm) if one else (torch.bmm, torch.baddbmm)
    P = multiply(Y.mT, Y)
    P.diagonal(0, -2, -1).sub_(1)
    norm = torch.linalg.vector_norm
    size = min(float(norm(P) if one else norm(P, dim=(-2, -1)).max()), FAR)
    allowed = limits.largest_next_term(X)
    if 3 / 8 * size**2 <= allowed:
        return add(Y, Y, P, alpha=-0.5, out=out)
    if 5 / 16 * size**3 <= allowed:
        return add(Y, Y, add(P, P, P, beta=-0.5, alpha=3 / 8), out=out)
    if 63 / 256 * size**5 <= allowed:
        P2 = multiply(P, P)
        V = (P2 * (35 / 128)).sub_(P, alpha=5 / 16)
        return add(Y, Y, add((P2 * (3 / 8)).sub_(P, alpha=1 / 2), P2, V), out=out)
    Y = _nearest_of_one(X, Y, P) if one else nearest(X, Y, P)
    return Y if out is None else out.copy_(Y)


def _nearest_of_one(X: Tensor, Y: Tensor, P: Tensor) -> Tensor:
    """`_nearest` for one matrix on a CPU, with numbers on the host; P is overwritten."""
    lows, factors = limits.intervals(Y.dtype, Y.device).tolist()
    P2 = P @ P
    bound = math.sqrt(float(torch.linalg.vector_norm(P2)))
    if bound > limits.WIDEST:
        cut = limits.WIDEST / bound
        Y, P, P2, bound = torch.lerp(X, Y, math.sqrt(cut)), P * cut, P2 * cut**2, limits.WIDEST
    low = 1 / math.sqrt(1 + bound)
    start = max(bisect_right(lows, low) - 1, 0)
    c = math.sqrt(2 / (2 + bound))
    if start < len(lows) - 1:
        for r, factor in enumerate(factors[start:-1]):
            low *= factor
            G = Y.mT @ Y if r else P
            if not r:
                G.diagonal().add_(1)
            Y = torch.addmm(Y, Y, G, beta=1.5, alpha=-0.5 * low**2)
        P = Y.mT @ Y
        P.diagonal().sub_(1)
        P2 = P @ P
        c = low / math.sqrt((1 + lows[-1] ** 2) / 2)
    more = c**2 - 1
    Q, Q2 = P.mul_(c**2), P2.mul_(c**4)
    Q2.add_(Q, alpha=2 * more)
    Q.diagonal().add_(more)
    Q2.diagonal().add_(more**2)
    T = (Q2 * (3 / 8)).add_(Q, alpha=-1 / 2).addmm_(Q2, Q.mul_(-5 / 16).add_(Q2, alpha=35 / 128))
    return torch.addmm(Y, Y, T, beta=c, alpha=c)


def adapted_polar_step(
    X: Float[Tensor, "d d"], D: Float[Tensor, "d d"], lr: float, moments: Float[Tensor, "d"]
) -> tuple[Float[Tensor, "d d"], Float[Tensor, "d d"]]:
    r"""The polar step with second moments of a square matrix on a CPU, and the tangent part of D.

    That is $\Omega X/2$, with the generator before it is divided; in the precision of the context.
    """
    S = D @ X.mT
    omega = S - S.mT
    tangent = torch.addmm(D, omega, X, beta=0, alpha=0.5)
    w = moments.to(omega)
    omega.div_((w[:, None] + w).mul_(0.5).sqrt_())
    R = omega @ X
    with full_precision():
        return nearest_on_cpu(X, walk(X, R, R, lr)), tangent
