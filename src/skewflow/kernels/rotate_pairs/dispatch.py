"""Decides which points the CUDA kernels of pairs take; the reference steps the others."""

import torch
from jaxtyping import Float
from torch import Tensor

LONGEST_TRITON_COLUMN = 16384
"""Most rows of points that are stored by columns: a longer row in memory does not fit the registers
of a program."""


def has_kernel(X: Float[Tensor, "n d k"]) -> bool:
    """Whether the CUDA kernels can rotate pairs of rows of these points."""
    if X.device.type != "cuda":
        return False
    rows_contiguous = X.stride(-1) == 1
    return X.dtype in (torch.float32, torch.float64) and (
        rows_contiguous or X.shape[-2] <= LONGEST_TRITON_COLUMN
    )
