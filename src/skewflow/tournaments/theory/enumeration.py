"""All members of T_s, for exact sums at small d."""

from collections.abc import Iterator
from itertools import combinations

from ...errors import TooLargeError
from ..partitions import BlockSize, Partition, block_sizes
from .counting import num_partitions

LIMIT = 200_000
"""Largest number of outcomes of an exact enumeration; it takes about five seconds."""


def enumerate_partitions(d: int, block_size: BlockSize) -> Iterator[Partition]:
    """The members of T_s, each exactly once (Sec. 3.1).

    Args:
        d: Number of rows.
        block_size: As in `block_sizes`; unequal sizes are allowed.

    Raises:
        TooLargeError: If there are more than 200,000 of them.

    Example:
        >>> [sorted(p) for p in enumerate_partitions(4, 2)]
        [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    """
    check_size(num_partitions(d, block_size), f"the partitions of d={d} rows")
    counts = dict(block_sizes(d, block_size))
    return (Partition.of(blocks) for blocks in _complete(tuple(range(d)), counts))


def check_size(outcomes: int, what: str) -> None:
    """Raise if there are more than `LIMIT` outcomes."""
    if outcomes > LIMIT:
        raise TooLargeError(
            f"enumeration is for small d: {what} number about 1e{len(str(outcomes)) - 1}, the "
            f"limit is {LIMIT}. Use a smaller matrix, or draw with `sample`."
        )


def _complete(rows: tuple[int, ...], counts: dict[int, int]) -> Iterator[list[tuple[int, ...]]]:
    """Partitions of `rows` with these size counts: the block of the first row, then the others."""
    if not rows:
        yield []
        return
    first, others = rows[0], rows[1:]
    for size in [size for size, count in counts.items() if count]:
        left = counts | {size: counts[size] - 1}
        for mates in combinations(others, size - 1):
            rest = tuple(row for row in others if row not in mates)
            for tail in _complete(rest, left):
                yield [(first, *mates), *tail]
