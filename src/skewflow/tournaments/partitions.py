"""Partitions of the d rows into disjoint blocks, the members of T_s (Sec. 3.1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import SupportsIndex

import torch
from jaxtyping import Int
from torch import Tensor

from .. import _validate
from .._typing import RowBlocks
from ..errors import BlockSizeError, ShapeError

BlockSize = SupportsIndex | Sequence[int]
"""The size s of all blocks, or the size of each."""

SizeCounts = tuple[tuple[int, int], ...]
"""Pairs (size, number of blocks of that size), largest size first."""


def block_sizes(d: int, block_size: BlockSize) -> SizeCounts:
    """The block sizes of a partition as (size, count) pairs, largest size first (Sec. 3.1).

    An integer s gives ceil(d / s) blocks whose sizes differ by at most one: for s = 2 and odd d one
    block has one row, and s = d is a single block. A sequence lists the sizes themselves. Unequal
    sizes are not in the paper.

    Args:
        d: Number of rows.
        block_size: The size s, 2 <= s <= d, or the size of each block, with the sum `d`.

    Example:
        >>> block_sizes(6, 3), block_sizes(7, 2), block_sizes(7, 3), block_sizes(7, (3, 3, 1))
        (((3, 2),), ((2, 3), (1, 1)), ((3, 1), (2, 2)), ((3, 2), (1, 1)))
    """
    if not isinstance(block_size, (list, tuple)):
        s = _validate.block_size(block_size, d)
        l = -(-d // s)
        small, larger = divmod(d, l)
        counts = ((small + 1, larger), (small, l - larger))
        return tuple((size, count) for size, count in counts if count)
    sizes = sorted((_validate.whole(size, "a block size") for size in block_size), reverse=True)
    if not sizes or sizes[-1] < 1 or sizes[0] < 2 or sum(sizes) != d:
        raise BlockSizeError(
            f"block sizes must be positive, sum to d={d}, and one must be at least 2: got "
            f"{tuple(block_size)}. Pass one integer to have the sizes chosen."
        )
    return tuple((size, len(list(run))) for size, run in groupby(sizes))


def edge_probability(d: int, block_size: BlockSize) -> Fraction:
    r"""$P(e \in T)$ under the uniform law: $(s-1)/(d-1)$ for equal block sizes (Lemma 9.3).

    For unequal sizes it is $\sum_c s_c(s_c-1) / (d(d-1))$ (not in the paper). Its inverse is the
    weight that makes the uniform estimate unbiased; for unequal sizes that is *not*
    $(d-1)/(s-1)$.

    Example:
        >>> edge_probability(6, 3), edge_probability(5, 2), edge_probability(7, 4)
        (Fraction(2, 5), Fraction(1, 5), Fraction(3, 7))
    """
    pairs = sum(count * size * (size - 1) for size, count in block_sizes(d, block_size))
    return Fraction(pairs, d * (d - 1))


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint blocks that cover the rows 0..d-1; G_T has the edges inside them (Sec. 3.1).

    Args:
        blocks: One (l, s) tensor of row indices for each block size s, largest first: one tensor
            if s divides d, at most two if it does not.

    Example:
        >>> partition = Partition.of([[0, 3], [1, 2], [4]])
        >>> partition.d, partition.sizes, partition.num_edges
        (5, (2, 2, 1), 2)
    """

    blocks: RowBlocks

    @classmethod
    def of(cls, blocks: Sequence[Sequence[int]]) -> "Partition":
        """The partition with the given blocks, each a list of rows; they must cover 0..d-1."""
        rows = sorted(row for block in blocks for row in block)
        if rows != list(range(len(rows))):
            raise ShapeError(
                f"`blocks` must hold each row 0..d-1 exactly once: got the rows {rows}."
            )
        ordered = sorted((sorted(block) for block in blocks), key=lambda b: (-len(b), b))
        return cls(tuple(torch.tensor(list(run)) for _, run in groupby(ordered, key=len)))

    @classmethod
    def from_order(cls, order: Int[Tensor, "d"], sizes: SizeCounts) -> "Partition":
        """Cut a permutation of the rows into consecutive blocks of the given sizes."""
        blocks, start = [], 0
        for size, count in sizes:
            cut = order[start : start + size * count].view(count, size)
            blocks.append(cut.sort(dim=-1).values)
            start += size * count
        return cls(tuple(blocks))

    @property
    def d(self) -> int:
        """Number of rows."""
        return sum(b.numel() for b in self.blocks)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each block, largest first."""
        return tuple(b.shape[1] for b in self.blocks for _ in range(b.shape[0]))

    @property
    def num_edges(self) -> int:
        """m, the number of edges of G_T; d(s-1)/2 for blocks of equal size."""
        return sum(b.shape[0] * b.shape[1] * (b.shape[1] - 1) // 2 for b in self.blocks)

    @property
    def device(self) -> torch.device:
        """The device of the indices."""
        return self.blocks[0].device

    def edges(self) -> Int[Tensor, "m 2"]:
        """The edges (i, j), i < j, of G_T: every pair of rows inside a block."""
        edges = [
            b[:, torch.combinations(torch.arange(b.shape[1], device=b.device))].flatten(0, 1)
            for b in self.blocks
            if b.shape[1] > 1
        ]
        if not edges:  # every block has one row
            return torch.empty(0, 2, dtype=torch.int64, device=self.device)
        return torch.cat(edges).sort(dim=-1).values

    def relabel(self, names: Int[Tensor, "d"]) -> "Partition":
        """The same partition with row i called ``names[i]``."""
        return Partition(tuple(names[b].sort(dim=-1).values for b in self.blocks))

    def to(self, device: torch.device | str) -> "Partition":
        """The partition with its indices on `device`."""
        return Partition(tuple(b.to(device) for b in self.blocks))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """The blocks as tuples of rows."""
        return (tuple(sorted(row)) for b in self.blocks for row in b.tolist())

    def key(self) -> frozenset[tuple[int, ...]]:
        """A hashable key that equal partitions share, whatever the order of their blocks."""
        return frozenset(self)
