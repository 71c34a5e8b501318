"""Chooses the code of a fused step by device, dtype and block size."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from .._typing import MatrixBlocks
from ..tournaments.partitions import Partition
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
    from .rotate_blocks._launches_triton import plan_blocks

    return plan_blocks(operands, update, block_size)


def stepper(device: torch.device, block_size: int, update: Update) -> Callable[..., None]:
    """The function that steps one parameter in place: compiled on a CPU, the reference elsewhere.

    It takes the points, their gradients, the momentum buffer or None, the number of steps done
    before, the update, and as `moments` the second moments of the rows or None.

    Args:
        device: Where the parameter is.
        block_size: s, between 2 and d.
        update: An update with the switches of those that follow.
    """
    if device.type != "cpu":
        return partial(_step_by_reference_, block_size=block_size)
    if block_size == 2 and update.angle is not None:
        from .turn_by_angle.pairs_cpu import step_pairs_by_angle_

        return step_pairs_by_angle_
    if block_size == 2 and update.num_draws > 1:
        from .rotate_pairs.draws_cpu import step_draws_

        return step_draws_
    if block_size == 2:
        from .rotate_pairs.cpu import step_pairs_

        return step_pairs_
    from .rotate_blocks.cpu import step_blocks_

    return partial(step_blocks_, block_size=block_size)


def _step_by_reference_(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: int,
    update: Update,
    *,
    block_size: int,
    moments: Float[Tensor, "n d"] | None = None,
) -> None:
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
    """Rotate the rows of one matrix and of its momentum by a drawn estimate, in place.

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

        theta = -update.lr_of_draw * blocks[0][:, 0, 1].to(torch.float64)
        rotate_given_pairs_(X, M, rows, theta, update.retraction)
        return
    turned = rotated(beside(X, M), partition, blocks, -update.lr_of_draw, update.retraction)
    X_new, M_new = apart(turned, X.shape[-1])
    X.copy_(X_new)
    if M is not None and M_new is not None:
        M.copy_(M_new)
