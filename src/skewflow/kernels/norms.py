"""Norms of matrices in float64, where squares neither overflow nor underflow."""

import torch
from jaxtyping import Float
from torch import Tensor


def frobenius(A: Float[Tensor, "n a b"]) -> Float[Tensor, "n"]:
    """The norm of each matrix in float64."""
    return torch.linalg.vector_norm(A, dim=(-2, -1), dtype=torch.float64)


def normalised(A: Float[Tensor, "n a b"]) -> tuple[Float[Tensor, "n a b"], Float[Tensor, "n"]]:
    """A over its Frobenius norm, so that powers neither overflow nor underflow; and the norm."""
    norm = frobenius(A)
    divisor = torch.where(norm > 0, norm, 1).to(A.dtype)
    return A / divisor[:, None, None], norm
