r"""Reference of the polar step: the point of ST(d, k) nearest to a tangent step."""

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.project import project
from ..generator import generator
from .limits import WIDEST


def polar_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: float,
    moments: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "n d k"]:
    r"""The nearest point to $X - c\,lr\,\Omega X$, $\Omega = DX^\top - XD^\top$ (not in the paper).

    The factor $c \le 1$ limits the step: with $T = lr\,\Omega X$ it is the largest for which
    $c^2 \|(T^\top T)^2\|_F^{1/2}$ is at most `WIDEST`.

    Args:
        X: Points with orthonormal columns.
        D: Directions.
        lr: Step size.
        moments: Second moments w of the rows, or None. The entry (i, j) of $\Omega$ is divided by
            $\sqrt{(w_i + w_j)/2}$.

    Example:
        >>> X, D = torch.eye(2)[None], torch.tensor([[[0.0, 0.5], [-0.5, 0.0]]])
        >>> polar_step(X, D, 0.1)
        tensor([[[ 0.9950, -0.0995],
                 [ 0.0995,  0.9950]]])
    """
    T = lr * (generator(X, D, moments) @ X)
    P = T.mT @ T
    bound = torch.linalg.matrix_norm(P @ P, keepdim=True).sqrt()
    c = (WIDEST / bound.clamp(min=WIDEST)).sqrt()
    return project(X - c * T)
