"""Decides which points are stepped by products of parts."""

import math

import torch
from torch import Tensor

SMALLEST = 96
"""Smallest number of rows and of columns for which CUDA multiplies parts faster than float32;
smaller matrices would be mostly padding."""

TILES = 64
"""Smallest number of 64 x 64 tiles in all the matrices of a step."""

SHARED = 200 * 1024
"""Bytes of shared memory that a program needs; data centre GPUs have it from compute capability 9.0
on. Nothing else was measured."""


def is_faster(X: Tensor) -> bool:
    """Whether products of parts are faster for such points: large float32 matrices on CUDA."""
    if X.device.type != "cuda" or X.dtype != torch.float32 or min(X.shape[-2:]) < SMALLEST:
        return False
    tiles = math.prod(X.shape[:-2]) * math.prod(-(-length // 64) for length in X.shape[-2:])
    if tiles < TILES:
        return False
    from .._runtime._launch_triton import shared_memory

    return shared_memory(X.device) >= SHARED
