"""`rotate_rounds` on CUDA: one launch for all rounds in each direction.

A program rotates a few vectors. They go from round to round through memory that stays in the L1
cache. A barrier separates rounds, because their pairs overlap.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

from typing import Any

import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from .._runtime._launch_triton import Launch

ROWS = 2
"""Vectors that a program turns at a time."""
PROGRAMS = 128
"""Most programs of the backward pass; each has a sum for every angle."""
MOST_PAIRS = 512
"""Most pairs of a round that are rotated at a time."""


@triton.jit(do_not_specialize=["batch", "rounds"])
def _advance(
    x_ptr, pairs_ptr, c_ptr, s_ptr, batch, rounds, d, m, ROWS: tl.constexpr, PAIRS: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    x = x_ptr + rows.to(tl.int64)[:, None] * d
    for r in range(rounds):
        for start in range(0, m, PAIRS):
            pair = start + tl.arange(0, PAIRS)
            here, at = pair < m, r * m + pair.to(tl.int64)
            i = tl.load(pairs_ptr + 2 * at, mask=here, other=0)[None, :]
            j = tl.load(pairs_ptr + 2 * at + 1, mask=here, other=0)[None, :]
            c = tl.load(c_ptr + at, mask=here, other=1.0)[None, :]
            s = tl.load(s_ptr + at, mask=here, other=0.0)[None, :]
            mask = (rows < batch)[:, None] & here[None, :]
            xi = tl.load(x + i, mask=mask, other=0.0)
            xj = tl.load(x + j, mask=mask, other=0.0)
            tl.store(x + i, c * xi + s * xj, mask=mask)
            tl.store(x + j, c * xj - s * xi, mask=mask)
        tl.debug_barrier()  # in the next round every thread reads what others have turned


@triton.jit(do_not_specialize=["batch", "rounds", "programs"])
def _retreat(
    g_ptr,
    y_ptr,
    pairs_ptr,
    c_ptr,
    s_ptr,
    sums_ptr,
    batch,
    rounds,
    programs,
    d,
    m,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    sums = sums_ptr + tl.program_id(0).to(tl.int64) * rounds * m
    for first in range(tl.program_id(0) * ROWS, batch, programs * ROWS):
        rows = first + tl.arange(0, ROWS)
        g = g_ptr + rows.to(tl.int64)[:, None] * d
        y = y_ptr + rows.to(tl.int64)[:, None] * d
        for t in range(rounds):
            for start in range(0, m, PAIRS):
                pair = start + tl.arange(0, PAIRS)
                here, at = pair < m, (rounds - 1 - t) * m + pair.to(tl.int64)
                i = tl.load(pairs_ptr + 2 * at, mask=here, other=0)[None, :]
                j = tl.load(pairs_ptr + 2 * at + 1, mask=here, other=0)[None, :]
                c = tl.load(c_ptr + at, mask=here, other=1.0)[None, :]
                s = tl.load(s_ptr + at, mask=here, other=0.0)[None, :]
                mask = (rows < batch)[:, None] & here[None, :]
                gi = tl.load(g + i, mask=mask, other=0.0)
                gj = tl.load(g + j, mask=mask, other=0.0)
                yi = tl.load(y + i, mask=mask, other=0.0)
                yj = tl.load(y + j, mask=mask, other=0.0)
                entry = tl.sum(gi * yj - gj * yi, axis=0)
                entry += tl.load(sums + at, mask=here, other=0.0)
                tl.store(sums + at, entry, mask=here)
                tl.store(g + i, c * gi - s * gj, mask=mask)
                tl.store(g + j, c * gj + s * gi, mask=mask)
                tl.store(y + i, c * yi - s * yj, mask=mask)
                tl.store(y + j, c * yj + s * yi, mask=mask)
            tl.debug_barrier()


def advance(
    x: Float[Tensor, "b d"],
    pairs: Int[Tensor, "n m 2"],
    c: Float[Tensor, "n m"],
    s: Float[Tensor, "n m"],
) -> Launch:
    """The launch that turns the vectors in place."""
    arguments = {"x_ptr": x, "pairs_ptr": pairs, "c_ptr": c, "s_ptr": s}
    return _launch(_advance, triton.cdiv(len(x), ROWS), x, pairs, arguments)


def retreat(
    g: Float[Tensor, "b d"],
    y: Float[Tensor, "b d"],
    pairs: Int[Tensor, "n m 2"],
    c: Float[Tensor, "n m"],
    s: Float[Tensor, "n m"],
) -> tuple[Float[Tensor, "p n m"], Launch]:
    """The launch that rotates both back, and the memory for the gradient of the angles."""
    programs = min(PROGRAMS, triton.cdiv(len(y), ROWS))
    sums = y.new_zeros(programs, *c.shape)
    arguments = {"g_ptr": g, "y_ptr": y, "pairs_ptr": pairs, "c_ptr": c, "s_ptr": s}
    arguments |= {"sums_ptr": sums, "programs": programs}
    return sums, _launch(_retreat, programs, y, pairs, arguments)


def _launch(
    kernel: Any, programs: int, x: Tensor, pairs: Tensor, arguments: dict[str, Any]
) -> Launch:
    rounds, m, _ = pairs.shape
    sizes = {"batch": x.shape[0], "rounds": rounds, "d": x.shape[1], "m": m}
    blocks = {"ROWS": ROWS, "PAIRS": min(MOST_PAIRS, triton.next_power_of_2(m))}
    return Launch(kernel, programs, {**arguments, **sizes, **blocks}, num_warps=4)
