"""Initialisation of orthogonal weights: Haar measure, and random rotations of pairs of rows."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import ShapeError
from ..geometry.haar import haar
from ..geometry.matrices import MatrixView


@torch.no_grad()
def orthogonal_(
    tensor: Float[Tensor, "*shape"],
    *,
    scale: float = 1.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*shape"]:
    """Fill a weight with Haar-distributed orthogonal matrices, in place.

    A tall weight gets orthonormal columns and a wide one orthonormal rows. A weight of three
    dimensions is a batch (n, d, k) of independent matrices; one of four or more is a convolution
    weight (C_out, C_in, *kernel) in the paper's flattening (Sec. 6.2, see `MatrixView`). A tensor
    does not show that it belongs to a `Conv1d` or a transposed convolution, so for these call
    `mark_orthogonal` on the module.

    Args:
        tensor: Weight of two or more dimensions, real and floating.
        scale: Length of the orthonormal columns or rows; give it to the optimiser, too.
        generator: Source of randomness; torch's global one when omitted.

    Returns:
        The same tensor.

    Example:
        >>> w = orthogonal_(torch.empty(3, 5), generator=torch.Generator().manual_seed(0))
        >>> bool(torch.allclose(w @ w.mT, torch.eye(3), atol=1e-6))
        True
    """
    _validate.floating(tensor, "tensor")
    if not 0 < scale < math.inf:
        raise ValueError(f"`scale` must be above 0 and finite: got {scale}.")
    view = MatrixView.of(tensor)
    n, d, k = view.matrices
    device = tensor.device if generator is None else generator.device
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    points = haar(d, k, batch=(n,), generator=generator, dtype=dtype, device=device)
    tensor.copy_(view.restore(points) * scale)
    return tensor


@torch.no_grad()
def torus_(
    tensor: Float[Tensor, "*batch d d"], *, generator: torch.Generator | None = None
) -> Float[Tensor, "*batch d d"]:
    r"""Fill a square weight with random rotations of the row pairs (1, 2), (3, 4), ..., in place.

    The angles are uniform on the circle, so the eigenvalues are independent, while those of a Haar
    matrix repel each other. It is meant for the transition of a recurrent net with a long memory
    (Henaff, Szlam and LeCun, "Recurrent Orthogonal Networks and Long-Memory Tasks", ICML 2016; not
    in the paper).

    Args:
        tensor: Square weight, or a batch of them; real and floating. For odd d the last row becomes
            the last unit vector.
        generator: Source of randomness; torch's global one when omitted.

    Returns:
        The same tensor.

    Raises:
        ShapeError: If the weight is not square.

    Example:
        >>> w = torus_(torch.empty(5, 5), generator=torch.Generator().manual_seed(0))
        >>> bool(torch.allclose(w @ w.mT, torch.eye(5), atol=1e-6)), int(w[:2, 2:].count_nonzero())
        (True, 0)
    """
    _validate.floating(tensor, "tensor")
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2]:
        raise ShapeError(
            f"`tensor` must be square, (*batch, d, d): got {tuple(tensor.shape)}. "
            "Use `orthogonal_`."
        )
    device = tensor.device if generator is None else generator.device
    shape = (*tensor.shape[:-2], tensor.shape[-1] // 2)
    angle = 2 * math.pi * torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
    c, s = angle.cos().to(tensor), angle.sin().to(tensor)
    i = torch.arange(0, 2 * shape[-1], 2, device=tensor.device)
    tensor.zero_()
    tensor[..., -1, -1] = 1.0  # the unpaired row of an odd d; for even d a pair overwrites it
    tensor[..., i, i], tensor[..., i, i + 1] = c, -s
    tensor[..., i + 1, i], tensor[..., i + 1, i + 1] = s, c
    return tensor
