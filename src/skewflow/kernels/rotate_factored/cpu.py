"""`rotate_factored` of one matrix on a CPU: the factors are read as seldom as can be.

The reference scales their columns first. Here that is left to the small matrices, for which the
lengths of the columns are on the diagonal of the Gram matrix.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .reference import LONGEST, coefficients, num_rounds

SHORTEST = {torch.float32: 1e-30, torch.float64: 1e-280}
"""Least square of a column's norm, and one over the largest, for which squares keep their digits.
The reference does for all: it finds norms in float64, and scales columns before their products."""


def rotate_factored_(
    X: Float[Tensor, "d k"],
    A: Float[Tensor, "d r"],
    B: Float[Tensor, "k r"],
    eta: float,
    V: Float[Tensor, "d r"] | None = None,
    AX: Float[Tensor, "r k"] | None = None,
) -> bool:
    r"""$X \leftarrow \exp(\eta\,\Omega)X$ for $\Omega = A(XB)^\top - XBA^\top$, in place.

    The norm of the step is bounded by the square root of that of $(\eta JM)^2$, whose eigenvalues
    are those of $(\eta\,\Omega)^2$; see the reference.

    Args:
        X: The point.
        A: Left factor of the gradient.
        B: Right factor.
        eta: Step size.
        V: X B, if it is known.
        AX: $A^\top X$, likewise.

    Returns:
        Whether it was done; if not, the step is too long for the series, or the squares of some
        column are not in the range of the dtype, and X is as it was.
    """
    d, r = A.shape
    F = X.new_empty(d, 2 * r)
    F[:, :r] = A
    if V is None:
        torch.mm(X, B, out=F[:, r:])
    else:
        F[:, r:] = V
    M = F.mT @ F
    squares = M.diagonal()
    low, high = (float(end) for end in torch.aminmax(squares))
    if not SHORTEST[X.dtype] <= low <= high <= 1 / SHORTEST[X.dtype]:
        return False
    roots = squares.pow(0.25)
    s = roots[r:] / roots[:r]
    t = s.reciprocal()
    c, turned = torch.cat([s, t]), torch.cat([t, s]).mul_(eta)[:, None]
    Z = torch.cat([M[r:], -M[:r]]).mul_(turned).mul_(c)  # eta J M of scaled columns
    Z2 = Z @ Z
    length = math.sqrt(float(torch.linalg.vector_norm(Z2)))
    if not length <= LONGEST:
        return False
    if AX is None:
        both = F.mT @ X
        AX, VX = both[:r], both[r:]
    else:
        VX = F[:, r:].mT @ X
    JT = torch.cat([VX, -AX]).mul_(turned)
    Q = _phi(Z, Z2, num_rounds(length, X.dtype)) @ JT
    X.addmm_(F, Q.mul_(c[:, None]))
    return True


def _phi(Z: Float[Tensor, "s s"], Z2: Float[Tensor, "s s"], rounds: int) -> Float[Tensor, "s s"]:
    """As that of the reference."""
    a, b = coefficients(rounds)
    P = Z * b
    P.diagonal().add_(a)
    for m in range(rounds - 1, -1, -1):
        a, b = coefficients(m)
        P = torch.addmm(Z, Z2, P, beta=b)
        P.diagonal().add_(a)
    return P
