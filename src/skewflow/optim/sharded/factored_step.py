r"""The exact step of a sharded weight for a gradient $AB^\top$ of low rank; see `rotate_factored`.

The generator is $\Omega = AV^\top - VA^\top$ with $V = XB$. Where columns are split, V is a sum
over processes, of d x r numbers, and the rest is local. Where rows are split, V is local, and the
products with $[A\;V]$ are sums: of its Gram matrix, and of $[A\;V]^\top X$.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision
from ...kernels.exact_exponential.batched import LARGEST_THIN_ANGLE
from ...kernels.rotate_factored.reference import LONGEST, num_rounds, phi
from .exact_step import Sub, lower, symmetric
from .rounds import Groups, Sum


def factored_step(
    X: Float[Tensor, "n d k"],
    A: Float[Tensor, "n d r"],
    B: Float[Tensor, "n k r"],
    lr: float,
    split: Literal["nothing", "columns", "rows"],
    groups: Groups,
) -> Sub:
    r"""$\exp(-lr\,\Omega)X$, of the part on this process.

    Args:
        X: The part of the points.
        A: The left factors in the rows of this process.
        B: The right factors in the columns of this process.
        lr: Step size.
        split: The dimension of the matrices that is split.
        groups: The processes that have the other parts.
    """
    by_columns, by_rows = (groups if split == side else () for side in ("columns", "rows"))
    r = A.shape[-1]
    with full_precision():
        (V,) = yield [Sum(X @ B, by_columns)]
        parts = torch.stack([(A * A).sum(-2), (A * V).sum(-2)])
        (parts,) = yield [Sum(parts, by_rows)]
        squares, products = parts
        V = V - A * (products / torch.where(squares > 0, squares, 1))[:, None, :]
        L = torch.cat([A, V], dim=-1)
        M, LX = yield [Sum(lower(L.mT @ L), by_rows), Sum(L.mT @ X, by_rows)]
        M, s = _balanced(symmetric(M, 2 * r).double())
        LX = LX.double() * s.mT
        J_LX = torch.cat([LX[:, r:], -LX[:, :r]], dim=-2)
        F = _phi_of(M, -lr, LARGEST_THIN_ANGLE[X.dtype]) @ J_LX
        return X + L @ (s.mT * F).to(X.dtype)


def _balanced(
    M: Float[Tensor, "n s s"],
) -> tuple[Float[Tensor, "n s s"], Float[Tensor, "n 1 s"]]:
    """The Gram matrix of factors whose pairs of columns are equally long, and their scales.

    A pair with a column of zeros is left out.
    """
    u, v = M.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt().chunk(2, dim=-1)
    both = (u > 0) & (v > 0)
    ratio = torch.where(both, v, 0) / torch.where(both, u, 1)
    s = torch.cat([ratio.sqrt(), torch.where(both, ratio, 1).rsqrt() * both], dim=-1)[:, None, :]
    return s.mT * M * s, s


def _phi_of(M: Float[Tensor, "n s s"], eta: float, most: float) -> Float[Tensor, "n s s"]:
    r"""$\eta\,\varphi(\eta JM)$ for $\varphi(Z) = (e^Z - 1) / Z$ and any eta.

    A long step is halved until the series serves it: $\varphi(2Z) = \varphi(Z)(e^Z + 1) / 2$.

    Args:
        M: Gram matrices in float64.
        eta: Step size.
        most: Largest angle; a longer step is cut.
    """
    r = M.shape[-1] // 2
    W = torch.cat([M[:, r:], -M[:, :r]], dim=-2)  # J M
    norm = torch.linalg.matrix_norm(M)
    cut = eta * (most / (abs(eta) * norm).clamp(min=most))[:, None, None]
    longest = float((cut.abs().flatten() * norm).max())
    halvings = 0
    while longest > LONGEST:
        longest, halvings = longest / 2, halvings + 1
    Z = cut / 2**halvings * W
    P = phi(Z, Z @ Z, num_rounds(longest, torch.float64))
    I = torch.eye(2 * r, dtype=M.dtype, device=M.device)
    E = I + Z @ P
    for _ in range(halvings):
        P, E = P @ (E + I) / 2, E @ E
    return cut * P
