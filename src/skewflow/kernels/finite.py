"""Whether a gradient is finite: one pass over its memory before a step changes anything."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, call-overload"

import numpy as np
import torch
from jaxtyping import Float
from numba import njit, prange
from torch import Tensor

from .permutation.cpu import FAST, PRANGE_ONLY, start_threads

CHUNK = 1 << 15


def is_finite(G: Float[Tensor, "*shape"]) -> bool:
    """Whether `G` has neither NaN nor infinity.

    On the CPU it runs on the threads of the kernels: torch's own would still be waiting busily for
    more work, on the same cores, while the kernel that follows runs.

    Example:
        >>> is_finite(torch.tensor([1.0, 3e38, 3e38])), is_finite(torch.tensor([1.0, torch.inf]))
        (True, False)
    """
    dense = G.is_contiguous() or (G.ndim == 2 and G.mT.is_contiguous())
    if G.device.type != "cpu" or not dense or G.dtype not in (torch.float32, torch.float64):
        return bool(torch.isfinite(G).all())
    start_threads()
    memory = G.detach().as_strided((G.numel(),), (1,)).numpy()
    bad = np.zeros(-(-memory.size // CHUNK), np.bool_)
    _look(memory, bad)
    return not bad.any()


@njit(cache=True, fastmath=FAST)
def _nothing(x):
    """The sum of 0 x: not zero, but NaN, where an entry is not finite."""
    total = x[0] * 0
    for t in range(x.size):
        total += x[t] * 0
    return total


@njit(parallel=PRANGE_ONLY, cache=True)
def _look(x, bad):
    for chunk in prange(bad.size):
        bad[chunk] = _nothing(x[chunk * CHUNK : (chunk + 1) * CHUNK]) != 0
