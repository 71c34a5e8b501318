r"""Givens rotations, the geodesics along the basis $H_{ij}$ (Lemma 2.4)."""

import torch
from jaxtyping import Float
from torch import Tensor

from .skew import check_plane


def givens(
    d: int,
    i: int,
    j: int,
    theta: float | Float[Tensor, ""],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Float[Tensor, "d d"]:
    r"""The rotation $\exp(\theta H_{ij})$ of the plane of rows i and j.

    $\cos\theta$ at (i, i) and (j, j), $+\sin\theta$ at (i, j), $-\sin\theta$ at (j, i). Multiplied from the left it sends row i to $\cos\theta\,x_i + \sin\theta\,x_j$ and row j to
    $\cos\theta\,x_j - \sin\theta\,x_i$.

    Example:
        >>> givens(2, 0, 1, 0.1)
        tensor([[ 0.9950,  0.0998],
                [-0.0998,  0.9950]])
    """
    check_plane(d, i, j)
    R = torch.eye(d, dtype=dtype, device=device)
    angle = torch.as_tensor(theta, dtype=R.dtype, device=device)
    R[i, i] = R[j, j] = angle.cos()
    R[i, j], R[j, i] = angle.sin(), -angle.sin()
    return R
