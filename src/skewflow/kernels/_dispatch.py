"""Which code runs a fused step: one readable choice by device, dtype and block size."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from .rotate_blocks.reference import step_blocks
from .rotate_pairs.reference import step_pairs
from .update import Update

if TYPE_CHECKING:
    from ._triton import Launches, Operands

LARGEST_TRITON_BLOCK = {"exp": 128, "cayley": 64}
LONGEST_TRITON_COLUMN = 16384
"""What the CUDA kernels take: of more than 64 rows only the series of the exponential fits one
program, of more than 128 not even that, nor does a longer storage row fit its registers. The rest
runs as the reference."""


def has_kernel(X: Float[Tensor, "n d k"], block_size: int, retraction: str) -> bool:
    """Whether `plan` can step such points."""
    if X.device.type != "cuda":
        return False
    if block_size > 2:
        return X.dtype == torch.float32 and block_size <= LARGEST_TRITON_BLOCK[retraction]
    rows_contiguous = X.stride(-1) == 1
    return X.dtype in (torch.float32, torch.float64) and (
        rows_contiguous or X.shape[-2] <= LONGEST_TRITON_COLUMN
    )


def plan(operands: "Operands", update: Update, block_size: int) -> "Launches":
    """The launches that step several CUDA parameters of one shape and layout, in place."""
    if block_size == 2:
        from .rotate_pairs._triton import plan_pairs

        return plan_pairs(operands, update)
    from .rotate_blocks._triton import plan_blocks

    return plan_blocks(operands, update, block_size)


def step_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: int,
    update: Update,
    block_size: int,
    moments: Float[Tensor, "n d"] | None = None,
) -> None:
    """One step on one parameter, in place: compiled on the CPU, the reference elsewhere.

    Args:
        X: The points: the parameter, or the float32 master of a half precision one.
        G: Their gradients; not modified.
        M: Their momentum buffer, or None.
        step: Steps done before.
        update: Step size, momentum, seed and stream.
        block_size: s, between 2 and d.
        moments: Second moments of the rows, or None.
    """
    if X.device.type == "cpu" and X.dtype in (torch.float32, torch.float64):
        if block_size == 2:
            from .rotate_pairs import cpu as pairs

            pairs.step_pairs_(X, G.to(X.dtype), M, step, update, moments)
        else:
            from .rotate_blocks import cpu as blocks

            blocks.step_blocks_(X, G.to(X.dtype), M, step, update, block_size, moments)
        return
    time = torch.tensor(step, device=X.device)
    if block_size == 2:
        X_new, M_new = step_pairs(X, G, M, time, update, moments)
    else:
        X_new, M_new = step_blocks(X, G, M, time, update, block_size, moments)
    X.copy_(X_new)
    if M is not None and M_new is not None:
        M.copy_(M_new)
