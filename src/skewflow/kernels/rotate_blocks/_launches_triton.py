"""The memory and the launches of a step in blocks, for weights of one shape on CUDA."""

from typing import Any

import torch
import triton
from torch import Tensor

from .._runtime._launch_triton import (
    Launch,
    Launches,
    num_multiprocessors,
    shared_memory,
    starts_early,
)
from .._runtime._operands_triton import Operands, common_arguments, scale_of
from ..row_moments._triton import moment_launches
from ..update import Update
from . import _action_triton as action
from . import _triton as kernels
from .dispatch import LARGEST_TRITON_BLOCK

GRAM_PROGRAMS = {16: 8, 32: 4, 64: 2, 128: 1}
APPLY_PROGRAMS = {16: 32, 32: 8, 64: 4, 128: 2}
"""Programs per multiprocessor by padded block size: the best of a sweep on one H200 up to 64; the
value for 128 was not measured."""

MOST_SHARED = 168 * 1024
"""Bytes of shared memory that `act` takes if it keeps the tiles of A."""


def plan_blocks(operands: Operands, update: Update, block_size: int, **tuning: int) -> Launches:
    """The launches of `step_blocks`, in place, on all parameters of one shape at once.

    Args:
        operands: The tensors; the points are float32.
        update: Switches and seed of the step; its numbers are given at each launch.
        block_size: s, between 2 and `LARGEST_TRITON_BLOCK`.
        **tuning: Overrides of the launches: `splits`, `block_k`, `apply_splits`, `apply_block_k`,
            `gram_warps`, `retract_warps`, `apply_warps`, `early`, `reload`.

    Raises:
        ValueError: If the blocks are too large or the points not float32.
    """
    X = operands.Xs[0]
    largest = LARGEST_TRITON_BLOCK[update.retraction]
    if block_size > largest:
        raise ValueError(
            f"`block_size` must be at most {largest} in the CUDA kernel of "
            f"retraction={update.retraction!r}: got {block_size}."
        )
    if X.dtype != torch.float32:
        raise ValueError(f"the CUDA kernel of blocks needs float32 points: got {X.dtype}.")
    d = X.shape[1]
    num_blocks = -(-d // block_size)
    small, larger = divmod(d, num_blocks)
    most = small + bool(larger)
    pack = max(1, 16 // most)
    S = max(16, triton.next_power_of_2(most))
    num_groups = triton.cdiv(num_blocks, pack)
    programs = operands.num_matrices * num_groups
    least = 256 if S <= 64 else 32  # a column is more work for large blocks
    gram = _split(X, programs, GRAM_PROGRAMS[S], tuning.get("splits"), 256)
    apply = _split(X, programs, APPLY_PROGRAMS[S], tuning.get("apply_splits"), least)
    # A kernel may start while the previous one ends, and waits only where it needs its results.
    early = bool(tuning.get("early", starts_early(X.device)))
    chained = {"launch_pdl": True} if early else {}
    partials = X.new_empty(programs, gram["splits"], S, S)
    E = X.new_empty(programs, S, S)
    arguments = {
        **common_arguments(operands, update),
        "partials_ptr": partials,
        "E_ptr": E,
        "small": small,
        "larger": larger,
        "num_blocks": num_blocks,
        "num_groups": num_groups,
        "PACK": pack,
        "S": S,
        "EARLY": early,
    }
    block_k = {"BLOCK_K": tuning.get("block_k", 64 if S <= 64 else 32)}
    apply_block_k = {"BLOCK_K": tuning.get("apply_block_k", 64 if S <= 32 else 32)}
    launches = [
        *moment_launches(operands, arguments),
        Launch(
            kernels.gram,
            programs * gram["splits"],
            {**arguments, **gram, **block_k},
            num_warps=tuning.get("gram_warps", S // 16),
            num_stages=3 if S <= 64 else 2,
        ),
    ]
    scale, kept = scale_of(d, block_size), [partials, E, *operands.kept]
    if S > 64:
        terms = X.new_empty(programs, dtype=torch.int32)
        arguments |= {"terms_ptr": terms, "TAIL": 32 if most <= 96 else 64}
        launches += _action_launches(X, programs, arguments, gram, apply, chained, tuning)
        return Launches(X.device, scale, launches, [terms, *kept], operands.table, operands.wide)
    launches += [
        Launch(
            kernels.retract,
            programs,
            {**arguments, **gram},
            num_warps=tuning.get("retract_warps", 1 if S == 16 else 4),
            **chained,
        ),
        Launch(
            kernels.apply,
            programs * apply["splits"],
            {**arguments, **apply, **apply_block_k},
            num_warps=tuning.get("apply_warps", 4 if S <= 32 else 2),
            **chained,
        ),
    ]
    return Launches(X.device, scale, launches, kept, operands.table, operands.wide)


def _action_launches(
    X: Tensor,
    programs: int,
    arguments: dict[str, Any],
    gram: dict[str, int],
    apply: dict[str, int],
    chained: dict[str, bool],
    tuning: dict[str, int],
) -> list[Launch]:
    """The launches that follow the partial sums of S, given the arguments of `plan_blocks`."""
    reload = bool(tuning.get("reload", shared_memory(X.device) < MOST_SHARED))
    block_k = tuning.get("apply_block_k", 16 if reload else 32)
    return [
        Launch(
            action.generate,
            programs,
            {**arguments, **gram},
            num_warps=tuning.get("retract_warps", 4),
            num_stages=1,
            **chained,
        ),
        Launch(
            action.act,
            programs * apply["splits"],
            {**arguments, **apply, "BLOCK_K": block_k, "RELOAD": reload},
            num_warps=tuning.get("apply_warps", 4 if reload else 8),
            num_stages=1,
            **chained,
        ),
    ]


def _split(
    X: Tensor, num_programs: int, per_sm: int, splits: int | None, least: int
) -> dict[str, int]:
    """Stretches of `least` columns or more, for `per_sm` programs per multiprocessor."""
    k = X.shape[-1]
    most = per_sm * num_multiprocessors(X.device) // num_programs
    wanted = splits or max(1, min(most, k // least))
    size = triton.cdiv(triton.cdiv(k, wanted), 16) * 16  # 16, so that the loads stay wide
    return {"splits": triton.cdiv(k, size), "split_size": size}
