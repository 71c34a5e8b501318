"""Which code runs a fused step: one readable choice by device, dtype and block size."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from .rotate_blocks.reference import step_blocks
from .rotate_pairs.reference import step_pairs
from .update import Update

LARGEST_TRITON_BLOCK = 64
LONGEST_TRITON_COLUMN = 16384
"""What the CUDA kernels take: larger blocks and longer columns run as the reference."""


def step_(
    Xs: Sequence[Tensor],
    Gs: Sequence[Tensor],
    Ms: Sequence[Tensor] | None,
    Ps: Sequence[Tensor] | None,
    step: Int[Tensor, ""],
    update: Update,
    streams: Sequence[int],
    block_size: int,
) -> None:
    """One step on several parameters of one shape, dtype and memory layout, in place.

    Args:
        Xs: The points, each (n, d, k): parameters, or the float32 masters of half precision ones.
        Gs: Their gradients; not modified.
        Ms: Their momentum buffers, or None.
        Ps: The half precision parameters that receive the rounded points, or None.
        step: Steps done before, an int64 scalar on the points' device.
        update: Step size, momentum and seed; its own stream is not used.
        streams: Number of the first matrix of each parameter.
        block_size: s, between 2 and d.
    """
    if _runs_in_triton(Xs[0], block_size):
        if block_size == 2:
            from .rotate_pairs import _triton as pairs

            pairs.step_pairs_(Xs, Gs, Ms, Ps, step, update, streams)
        else:
            from .rotate_blocks import _triton as blocks

            blocks.step_blocks_(Xs, Gs, Ms, Ps, step, update, streams, block_size)
        return
    momenta: Sequence[Tensor | None] = Ms if Ms is not None else [None] * len(Xs)
    for X, G, M, stream in zip(Xs, Gs, momenta, streams, strict=True):
        mine = update.with_stream(stream)
        if X.device.type == "cpu" and X.dtype in (torch.float32, torch.float64):
            _step_cpu(X, G.to(X.dtype), M, step, mine, block_size)
        else:
            _step_reference(X, G, M, step, mine, block_size)
    if Ps is not None:
        for P, X in zip(Ps, Xs, strict=True):
            P.copy_(X)


def _runs_in_triton(X: Tensor, block_size: int) -> bool:
    if X.device.type != "cuda" or X.dtype != torch.float32 or block_size > LARGEST_TRITON_BLOCK:
        return False
    rows_contiguous = X.stride(-1) == 1
    return rows_contiguous or block_size > 2 or X.shape[-2] <= LONGEST_TRITON_COLUMN


def _step_cpu(
    X: Tensor, G: Tensor, M: Tensor | None, step: Tensor, update: Update, block_size: int
) -> None:
    if block_size == 2:
        from .rotate_pairs import cpu as pairs

        pairs.step_pairs_(X, G, M, step, update)
    else:
        from .rotate_blocks import cpu as blocks

        blocks.step_blocks_(X, G, M, step, update, block_size)


def _step_reference(
    X: Tensor, G: Tensor, M: Tensor | None, step: Tensor, update: Update, block_size: int
) -> None:
    if block_size == 2:
        X_new, M_new = step_pairs(X, G, M, step, update)
    else:
        X_new, M_new = step_blocks(X, G, M, step, update, block_size)
    X.copy_(X_new)
    if M is not None and M_new is not None:
        M.copy_(M_new)
