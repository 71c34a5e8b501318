"""Which points the CUDA kernels of blocks take; the rest runs as the reference."""

import torch
from jaxtyping import Float
from torch import Tensor

LARGEST_TRITON_BLOCK = {"exp": 128, "cayley": 64}
"""Largest block by retraction. Of more than 64 rows only the series of the exponential fits one
program, of more than 128 not even that."""


def has_kernel(X: Float[Tensor, "n d k"], block_size: int, retraction: str) -> bool:
    """Whether the CUDA kernels can rotate blocks of this size."""
    if X.device.type != "cuda":
        return False
    return X.dtype == torch.float32 and block_size <= LARGEST_TRITON_BLOCK[retraction]
