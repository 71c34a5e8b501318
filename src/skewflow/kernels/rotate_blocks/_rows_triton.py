"""The rows of a group of blocks: a stretch of the keyed, shuffled order."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

from ..permutation._triton import permute


@triton.jit
def start_of(block, small, larger):
    """First place, in the shuffled order, of a block: the first `larger` have small + 1 rows."""
    return block * small + tl.minimum(block, larger)


@triton.jit
def block_of(place, small, larger):
    """The block that holds a place of the shuffled order."""
    return tl.where(place < larger * (small + 1), place // (small + 1), (place - larger) // small)


@triton.jit
def find_rows(
    group,
    d,
    small,
    larger,
    num_blocks,
    key,
    BITS,
    NUM_ROUNDS,
    PACK: tl.constexpr,
    S: tl.constexpr,
    FIRST: tl.constexpr = 0,
):
    """The rows of a group of blocks, from its row FIRST on, and which of the S lanes hold one."""
    begin = start_of(group * PACK, small, larger)
    end = start_of(tl.minimum((group + 1) * PACK, num_blocks), small, larger)
    places = begin + FIRST + tl.arange(0, S)
    present = places < end
    rows = permute(tl.where(present, places, 0), d, key, BITS, NUM_ROUNDS)
    return rows.to(tl.int64), present
