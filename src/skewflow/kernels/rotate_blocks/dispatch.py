"""Decides which points the CUDA kernels of blocks take; the reference steps the others."""

import torch
from jaxtyping import Float
from torch import Tensor

LARGEST_TRITON_BLOCK = {"exp": 128, "cayley": 64}
"""Largest block by retraction. Beyond 64 rows only the series of the exponential fits a program;
beyond 128 it does not fit, either."""


def has_kernel(X: Float[Tensor, "n d k"], block_size: int, retraction: str) -> bool:
    """Whether the CUDA kernels can rotate blocks of this size."""
    if X.device.type != "cuda":
        return False
    return X.dtype == torch.float32 and block_size <= LARGEST_TRITON_BLOCK[retraction]
