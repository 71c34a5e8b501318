"""Which code runs a fused step: one readable choice by device, dtype and block size."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from .._typing import MatrixBlocks
from ..tournaments.partitions import Partition
from .permutation.reference import num_rounds_of_sweep
from .rotate_blocks import dispatch as rotate_blocks
from .rotate_blocks.reference import rotate_blocks as rotated
from .rotate_blocks.reference import step_blocks
from .rotate_pairs import dispatch as rotate_pairs
from .rotate_pairs.reference import step_pairs
from .turn_by_angle.reference import step_by_angle
from .update import Update, apart, beside

if TYPE_CHECKING:
    from ._runtime._launch_triton import Launches
    from ._runtime._operands_triton import Operands


def has_kernel(X: Float[Tensor, "n d k"], block_size: int, retraction: str) -> bool:
    """Whether `plan` can step such points."""
    if block_size > 2:
        return rotate_blocks.has_kernel(X, block_size, retraction)
    return rotate_pairs.has_kernel(X)


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
            # Independent matchings are the first rounds of as many sweeps.
            rounds = num_rounds_of_sweep(X.shape[-2]) if update.independent else 1
            if update.angle is not None:
                from .turn_by_angle.pairs_cpu import step_pairs_by_angle_

                step_pairs_by_angle_(X, G.to(X.dtype), M, step * rounds, update)
                return
            from .rotate_pairs import cpu as pairs

            pairs.step_pairs_(X, G.to(X.dtype), M, step * rounds, update, moments)
        else:
            from .rotate_blocks import cpu as blocks

            blocks.step_blocks_(X, G.to(X.dtype), M, step, update, block_size, moments)
        return
    time = torch.tensor(step, device=X.device)
    if update.angle is not None:
        X_new, M_new = step_by_angle(X, G, M, time, update, block_size)
    elif block_size == 2:
        X_new, M_new = step_pairs(X, G, M, time, update, moments)
    else:
        X_new, M_new = step_blocks(X, G, M, time, update, block_size, moments)
    X.copy_(X_new)
    if M is not None and M_new is not None:
        M.copy_(M_new)


def rotate_(
    X: Float[Tensor, "d k"],
    M: Float[Tensor, "d k"] | None,
    partition: Partition,
    blocks: MatrixBlocks,
    update: Update,
) -> None:
    """Turn the rows of one matrix and of its momentum by a drawn estimate, in place.

    Args:
        X: The point.
        M: Its momentum, or None.
        partition: Blocks of rows.
        blocks: The estimate of the generator inside of them.
        update: Step size and retraction.
    """
    rows = partition.blocks[0]
    if X.device.type == "cpu" and rows.shape[1] == 2:
        from .rotate_pairs.given_cpu import rotate_given_pairs_

        theta = -update.lr * blocks[0][:, 0, 1].to(torch.float64)
        rotate_given_pairs_(X, M, rows, theta, update.retraction)
        return
    turned = rotated(beside(X, M), partition, blocks, -update.lr, update.retraction)
    X_new, M_new = apart(turned, X.shape[-1])
    X.copy_(X_new)
    if M is not None and M_new is not None:
        M.copy_(M_new)
