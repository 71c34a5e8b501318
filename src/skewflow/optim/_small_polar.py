"""Exact steps of small weights on CUDA: which have a kernel, and with which limits it runs."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernels.update import Update
from ._polar import ERROR, LONGEST, WIDEST, WIDTH

if TYPE_CHECKING:
    from ..kernels._triton import Launches, Operands

MOST_COLUMNS = 64
"""Of a matrix: its Gram matrices are to fit the registers of one program."""

MOST_ENTRIES = 1 << 16
"""Of a matrix: one program walks along all of its rows, so that a longer one keeps it too long."""


def has_small_kernel(X: Float[Tensor, "n d k"], retraction: str, update: Update) -> bool:
    """Whether `plan_small_polar` can step such points, and is the way to do so."""
    _, d, k = X.shape
    small = k <= MOST_COLUMNS and d * k <= MOST_ENTRIES
    if X.device.type != "cuda" or X.dtype != torch.float32 or not small:
        return False
    return retraction == "polar" and update.beta2 is None and not update.nesterov


def plan_small_polar(operands: "Operands", update: Update) -> "Launches":
    """The launch that takes the step of `polar_step` on parameters of one shape, in place."""
    from ..kernels._small_polar_triton import plan_small_polar as plan

    width, error = WIDTH[torch.float32], ERROR[torch.float32]
    return plan(operands, update, longest=LONGEST, widest=WIDEST, width=width, error=error)
