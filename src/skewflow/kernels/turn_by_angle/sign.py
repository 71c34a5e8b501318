r"""The sign of a skew matrix turns every plane of the matrix by one radian."""

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision

QUINTIC, NUM_QUINTIC, NUM_CUBIC = (3.4445, -4.7750, 2.0315), 5, 2
"""The odd polynomial of Muon (Jordan et al. 2024), which takes singular values between 0.002 and 1
to between 0.68 and 1.13 in five rounds; two cubic Newton-Schulz steps bring these within 3 % of
1. Smaller values grow 480 times."""


def unit(A: Float[Tensor, "*n s s"]) -> Float[Tensor, "*n s s"]:
    r"""A over $\|A\|_F / \sqrt 2$, an upper bound of its angles; zero stays zero."""
    largest = A.abs().amax((-2, -1), keepdim=True)
    A = A / largest.where(largest > 0, 1)  # squares neither overflow nor vanish
    norm = torch.linalg.vector_norm(A, dim=(-2, -1), keepdim=True) / 2**0.5
    return A / norm.where(norm > 0, 1)


def sign(A: Float[Tensor, "*n s s"], planes: int) -> Float[Tensor, "*n s s"]:
    r"""$U \mathrm{diag}(1, \dots, 1) V^\top$ of skew $A = U\Sigma V^\top$, by products only.

    Args:
        A: Skew matrices.
        planes: The most planes that one of them turns. For a single plane the result is exact.

    Example:
        >>> A = torch.tensor([[0.0, -0.2], [0.2, 0.0]])
        >>> torch.allclose(sign(A, planes=1), A / 0.2)
        True
    """
    Y = unit(A)
    if planes < 2:
        return Y
    a, b, c = QUINTIC
    with full_precision():
        for _ in range(NUM_QUINTIC):  # Y^T = -Y turns the signs of odd powers of Y^T Y
            Y2 = Y @ Y
            Y = a * Y + Y @ (c * (Y2 @ Y2) - b * Y2)
        for _ in range(NUM_CUBIC):
            Y = 1.5 * Y + 0.5 * Y @ (Y @ Y)
    return (Y - Y.mT) / 2
