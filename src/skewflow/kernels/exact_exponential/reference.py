r"""Reference of the exponential step: $\exp(-lr\,\Omega)X$ with all of $\Omega$ (Eq. 4)."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..generator import generator


def exponential_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: float,
    moments: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "n d k"]:
    r"""Rotate `X` along the geodesic of $-\Omega X$, $\Omega = DX^\top - XD^\top$.

    The fast forms limit the angle of a plane: see `LARGEST_ANGLE` and `LARGEST_THIN_ANGLE`.

    Args:
        X: Points with orthonormal columns.
        D: Directions.
        lr: Step size.
        moments: Second moments w of the rows, or None. The entry (i, j) of $\Omega$ is divided by
            $\sqrt{(w_i + w_j)/2}$.

    Example:
        >>> X, D = torch.eye(2)[None], torch.tensor([[[0.0, 0.5], [-0.5, 0.0]]])
        >>> exponential_step(X, D, 0.1)
        tensor([[[ 0.9950, -0.0998],
                 [ 0.0998,  0.9950]]])
    """
    return torch.linalg.matrix_exp(-lr * generator(X, D, moments)) @ X
