"""`rotate_factored` of one matrix on a CPU, with as few passes over the factors as possible.

The reference scales their columns first. Here only the small matrices are scaled: the squared
lengths of the columns are on the diagonal of the Gram matrix.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .reference import LONGEST, num_rounds, phi

SHORTEST = {torch.float32: 1e-30, torch.float64: 1e-280}
"""Smallest squared column norm whose squares keep their digits; its inverse is the largest. The
reference has no such limit: it computes norms in float64, and scales columns before their products.
"""


def rotate_factored_(
    X: Float[Tensor, "d k"],
    A: Float[Tensor, "d r"],
    B: Float[Tensor, "k r"],
    eta: float,
    V: Float[Tensor, "d r"] | None = None,
    AX: Float[Tensor, "r k"] | None = None,
) -> bool:
    r"""$X \leftarrow \exp(\eta\,\Omega)X$ for $\Omega = A(XB)^\top - XBA^\top$, in place.

    The part of a column of $V = XB$ that is parallel to that of A adds nothing to $\Omega$ but
    makes the factors longer, and rounding grows with their length. Near a stationary point this
    part is almost all of V, so it is subtracted.

    Args:
        X: The point.
        A: Left factor of the gradient.
        B: Right factor.
        eta: Step size.
        V: X B, if it is known.
        AX: $A^\top X$, likewise.

    Returns:
        Whether the step was taken. If not, X has not changed: the step is too long for the series,
        or the squares of some column leave the range of the dtype.
    """
    (d, r), shortest = A.shape, SHORTEST[X.dtype]
    F = X.new_empty(d, 2 * r)
    left, right = F[:, :r], F[:, r:]
    left.copy_(A)
    if V is None:
        torch.mm(X, B, out=right)
    else:
        right.copy_(V)
    squares = torch.linalg.vecdot(F, F, dim=0)
    if not _is_in_range(squares, shortest):
        return False
    parallel = torch.linalg.vecdot(left, right, dim=0) / squares[:r].clamp(min=shortest)
    right.addcmul_(left, parallel, value=-1)
    M = F.mT @ F
    before, squares = squares, M.diagonal()
    live = (squares > shortest).view(2, r).all(0)  # a pair with a column of zeros is left out
    rounding = before * (4 * torch.finfo(X.dtype).eps) ** 2
    if not live.all() and ((squares <= shortest) & (squares > rounding)).any():
        return False  # the column's remainder is more than rounding
    roots = squares.clamp(min=shortest).pow(0.25)
    s = torch.where(live, roots[r:] / roots[:r], 0)
    t = torch.where(live, roots[:r] / roots[r:], 0)
    c, turned = torch.cat([s, t]), torch.cat([t, s]).mul_(eta)[:, None]
    Z = torch.cat([M[r:], -M[:r]]).mul_(turned).mul_(c)  # eta J M of scaled columns
    if not _is_short(Z):
        return False
    Z2 = Z @ Z
    rounds = num_rounds(math.sqrt(float(torch.linalg.vector_norm(Z2))), X.dtype)
    if AX is None:
        both = F.mT @ X
        AX, VX = both[:r], both[r:]
    else:
        VX = right.mT @ X
    JT = torch.cat([VX, -AX]).mul_(turned)
    X.addmm_(F, (phi(Z, Z2, rounds) @ JT).mul_(c[:, None]))
    return True


def _is_in_range(squares: Float[Tensor, "two_r"], shortest: float) -> bool:
    """Whether all numbers that are not zero are in range; NaN is not."""
    low, high = (float(end) for end in torch.aminmax(squares))
    if low == 0:
        low = float(torch.where(squares > 0, squares, 1).min())
    return shortest <= low and high <= 1 / shortest


def _is_short(Z: Float[Tensor, "s s"]) -> bool:
    r"""Whether a bound on the norm is at most `LONGEST`, up to which the series is accurate.

    $\|Z^2\|$ is not such a bound: Z is not normal, and rounding grows with Z itself.
    """
    if float(torch.linalg.vector_norm(Z)) <= LONGEST:
        return True
    return float(torch.linalg.vector_norm(Z @ Z.mT)) <= LONGEST**2
