"""Haar initialisation of orthogonal weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..geometry.haar import haar
from ..geometry.matrices import MatrixView


@torch.no_grad()
def orthogonal_(
    tensor: Float[Tensor, "*shape"], *, generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """Fill a weight with Haar-distributed orthogonal matrices, in place.

    A tall weight gets orthonormal columns, a wide one orthonormal rows, a batch (n, d, k) n
    independent matrices, a convolution weight the paper's flattening (see `MatrixView`).

    Args:
        tensor: Weight of two or more dimensions, real and floating.
        generator: Source of randomness; torch's global one when omitted.

    Returns:
        The same tensor.

    Example:
        >>> w = orthogonal_(torch.empty(3, 5), generator=torch.Generator().manual_seed(0))
        >>> bool(torch.allclose(w @ w.mT, torch.eye(3), atol=1e-6))
        True
    """
    _validate.floating(tensor, "tensor")
    view = MatrixView.of(tensor)
    n, d, k = view.matrices
    device = tensor.device if generator is None else generator.device
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    points = haar(d, k, batch=(n,), generator=generator, dtype=dtype, device=device)
    tensor.copy_(view.restore(points))
    return tensor
