r"""Givens rotations, the geodesics along the basis $H_{ij}$ (Lemma 2.4)."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import NonFiniteError
from .skew import check_dtype, check_plane


def givens(
    d: int,
    i: int,
    j: int,
    theta: float | Float[Tensor, "*batch"],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Float[Tensor, "*batch d d"]:
    r"""The rotation $\exp(\theta H_{ij})$ of the plane of rows i and j (Lemma 2.4).

    $\cos\theta$ at (i, i) and (j, j), $+\sin\theta$ at (i, j), $-\sin\theta$ at (j, i). Multiplied
    from the left it sends row i to $\cos\theta\,x_i + \sin\theta\,x_j$ and row j to
    $\cos\theta\,x_j - \sin\theta\,x_i$.

    Args:
        d: Number of rows.
        i: First row of the plane.
        j: Second row of the plane.
        theta: Angle in radians; a tensor of angles gives one rotation per angle.
        dtype: Real floating dtype; that of `theta` when it is a float tensor, else torch's default.
        device: Device of the result; that of `theta` when it is a tensor, else torch's default.

    Example:
        >>> givens(2, 0, 1, 0.1)
        tensor([[ 0.9950,  0.0998],
                [-0.0998,  0.9950]])
    """
    check_plane(d, i, j)
    if isinstance(theta, Tensor):
        dtype = theta.dtype if dtype is None and theta.is_floating_point() else dtype
        device = theta.device if device is None else device
    check_dtype(dtype)
    R = torch.eye(d, dtype=dtype, device=device)
    angle = torch.as_tensor(theta, dtype=R.dtype, device=device)
    if not torch.isfinite(angle).all():
        raise NonFiniteError(
            f"`theta` must be finite: got {theta}. Check for an overflow where it was computed."
        )
    R = R.expand(*angle.shape, d, d).clone()
    R[..., i, i] = R[..., j, j] = angle.cos()
    R[..., i, j], R[..., j, i] = angle.sin(), -angle.sin()
    return R
