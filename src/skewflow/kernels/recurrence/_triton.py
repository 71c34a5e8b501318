"""`recurrence` on CUDA: one launch for the whole sequence in each direction.

A program runs one sequence of the batch through all steps. The state goes from step to step through
memory, and every step reads the matrix again from the L1 cache.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

from typing import Any

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from .._runtime._launch_triton import Launch
from .by_hand import WIDTH_UNIT


@triton.jit
def _row_times(v_ptr, M_ptr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr):
    """The row v M, with v and the (D, D) matrix M in memory; 16 divides D."""
    cols = tl.arange(0, BLOCK_D)
    total = tl.zeros((BLOCK_K, BLOCK_D), tl.float32)
    for start in tl.static_range(0, D, BLOCK_K):
        rows = start + tl.arange(0, BLOCK_K)
        v = tl.load(v_ptr + rows)
        at = M_ptr + rows[:, None] * D + cols[None, :]
        mask = (cols < D)[None, :]
        total += v[:, None] * tl.load(at, mask=mask, other=0.0, eviction_policy="evict_last")
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["batch", "length"])
def _advance(
    states_ptr,
    Wt_ptr,
    bias_ptr,
    batch,
    length,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    cols = tl.arange(0, BLOCK_D)
    present = cols < D
    sequence = tl.program_id(0).to(tl.int64)
    for t in range(length):
        before = states_ptr + (sequence + t * batch) * D
        now = states_ptr + (sequence + (t + 1) * batch) * D
        z = tl.load(now + cols, mask=present, other=0.0)
        z += _row_times(before, Wt_ptr, D, BLOCK_D, BLOCK_K)
        if bias_ptr is None:
            e = tl.exp(-2.0 * tl.abs(z))
            size = (1.0 - e) / (1.0 + e)
        else:
            size = tl.abs(z) + tl.load(bias_ptr + cols, mask=present, other=0.0)
            size = tl.maximum(size, 0.0, propagate_nan=tl.PropagateNan.ALL)
        h = tl.where(z == 0.0, 0.0, tl.where(z < 0.0, -size, size))
        tl.store(now + cols, h, mask=present)
        tl.debug_barrier()  # in the next step every thread reads all of it


@triton.jit(do_not_specialize=["batch", "length"])
def _retreat(
    down_ptr,
    states_ptr,
    W_ptr,
    batch,
    length,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    MODRELU: tl.constexpr,
):
    cols = tl.arange(0, BLOCK_D)
    present = cols < D
    sequence = tl.program_id(0).to(tl.int64)
    carry = tl.zeros((BLOCK_D,), tl.float32)
    for t in range(length):
        at = (sequence + (length - t) * batch) * D
        g = carry + tl.load(down_ptr + at + cols, mask=present, other=0.0)
        h = tl.load(states_ptr + at + cols, mask=present, other=0.0)
        g = tl.where(h == 0.0, 0.0, g) if MODRELU else g * (1.0 - h * h)
        tl.store(down_ptr + at + cols, g, mask=present)
        tl.debug_barrier()
        carry = _row_times(down_ptr + at, W_ptr, D, BLOCK_D, BLOCK_K)
    tl.store(down_ptr + sequence * D + cols, carry, mask=present)


def advance(
    states: Float[Tensor, "t b d"], W: Float[Tensor, "d d"], bias: Float[Tensor, "d"] | None
) -> Launch:
    """The launch that turns inputs into states, from the second row on; 16 divides d."""
    arguments = {"states_ptr": states, "Wt_ptr": W.mT.contiguous(), "bias_ptr": bias}
    return _launch(_advance, states, arguments)


def retreat(
    down: Float[Tensor, "t b d"],
    states: Float[Tensor, "t b d"],
    W: Float[Tensor, "d d"],
    bias: Float[Tensor, "d"] | None,
) -> Launch:
    """The launch that turns gradients of states into those of the arguments of f."""
    arguments = {"down_ptr": down, "states_ptr": states, "W_ptr": W.contiguous()}
    return _launch(_retreat, states, {**arguments, "MODRELU": bias is not None})


def _launch(kernel: Any, states: Tensor, arguments: dict[str, Any]) -> Launch:
    steps, batch, d = states.shape
    sizes = {"batch": batch, "length": steps - 1, "D": d}
    blocks = {"BLOCK_D": triton.next_power_of_2(d), "BLOCK_K": WIDTH_UNIT}
    return Launch(kernel, batch, {**arguments, **sizes, **blocks}, num_warps=8)
