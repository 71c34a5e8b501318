"""Whether a gradient can be used: one pass over its memory before a step changes anything."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, call-overload"

import numpy as np
import torch
from jaxtyping import Bool, Float
from numba import prange
from torch import Tensor

from ..update import LARGEST_GRADIENT
from .numba_loops import Loops, fast

CHUNK = 1 << 15


def is_usable(G: Float[Tensor, "*shape"], *, by_torch: bool = False) -> bool:
    """Whether `G` has neither NaN nor entries above `LARGEST_GRADIENT`, infinity among them.

    On the CPU it runs on the threads of the kernels. torch's threads would keep spinning on the
    same cores while the next kernel runs.

    Args:
        G: The gradient.
        by_torch: Check on torch's threads, because the step that follows runs on them.

    Example:
        >>> is_usable(torch.tensor([1.0, 1e18, 1e18])), is_usable(torch.tensor([1.0, torch.inf]))
        (True, False)
    """
    if by_torch:  # no entry is above the norm, which is ten times as fast as the largest
        if float(torch.linalg.vector_norm(G)) <= LARGEST_GRADIENT[G.dtype]:
            return True
    elif _has_kernel(G):
        memory = G.detach().as_strided((G.numel(),), (1,)).numpy()
        bad = np.zeros(-(-memory.size // CHUNK), np.bool_)
        _check_chunks(G.numel(), memory, bad, torch.finfo(G.dtype).max / LARGEST_GRADIENT[G.dtype])
        if not bad.any():
            return True
    return not unusable(G).any()


def _has_kernel(G: Tensor) -> bool:
    dense = G.is_contiguous() or (G.ndim == 2 and G.mT.is_contiguous())
    return G.device.type == "cpu" and dense and G.dtype in (torch.float32, torch.float64)


def unusable(G: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Which entries are NaN or too large."""
    return ~(G.abs() <= LARGEST_GRADIENT[G.dtype])


@fast
def _sum(x, scale):
    """The sum of the entries times a scale at which those that are too large overflow."""
    total, c = x[0] * 0, x.dtype.type(scale)
    for t in range(x.size):
        total += x[t] * c
    return total


@Loops
def _check_chunks(x, bad, scale):
    for chunk in prange(bad.size):
        bad[chunk] = not np.isfinite(_sum(x[chunk * CHUNK : (chunk + 1) * CHUNK], scale))
