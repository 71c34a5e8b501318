r"""Factors of a gradient divided by the second moment of its right factors, which is kept."""

import torch
from torch import Tensor

from ..multiply_parts import SHARED

LARGEST = 128
"""Highest rank that the CUDA kernels take: one program factorises a matrix of so many rows."""


def has_kernel(X: Tensor, rank: int) -> bool:
    """Whether the CUDA kernels take such points, and gradients of this rank."""
    if X.device.type != "cuda" or X.dtype != torch.float32 or rank > LARGEST:
        return False
    from .._triton import shared_memory

    return shared_memory(X.device) >= SHARED
