"""Non-intersecting families: partitions that together hold each edge exactly once (Sec. 3.2)."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import isqrt

import torch
from jaxtyping import Int
from torch import Tensor

from .. import _validate
from ..errors import FamilyError
from .partitions import Partition


class Family:
    r"""A non-intersecting family of partitions of d rows, given by its members (Sec. 3.2).

    Every pair of rows lies in exactly one member, so $M_T = J$ and a member drawn with probability
    p gives the unbiased estimate $\Omega[T] / p$.

    Args:
        members: The partitions; checked to hold every edge exactly once.

    Example:
        >>> family = Family([Partition.of([[0, 1], [2]]), Partition.of([[0, 2], [1]]),
        ...                  Partition.of([[1, 2], [0]])])
        >>> len(family), family.d
        (3, 3)
    """

    def __init__(self, members: Iterable[Partition]) -> None:
        self._members = list(members)
        if not self._members:
            raise FamilyError("a family needs at least one partition: got none.")
        self.d = self._members[0].d
        self._check_covers_each_edge_once()

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, r: int) -> Partition:
        return self._members[r]

    def __iter__(self) -> Iterator[Partition]:
        return (self[r] for r in range(len(self)))

    @cached_property
    def colours(self) -> Int[Tensor, "d d"]:
        """The number of the member that holds each edge; -1 on the diagonal.

        For matchings this is a proper edge colouring of K_d.
        """
        colours = torch.full((self.d, self.d), -1)
        for r, partition in enumerate(self):
            rows, columns = partition.edges().cpu().unbind(-1)
            colours[rows, columns] = colours[columns, rows] = r
        return colours

    def _check_covers_each_edge_once(self) -> None:
        seen = torch.zeros(self.d, self.d, dtype=torch.int64)
        for partition in self._members:
            if partition.d != self.d:
                raise FamilyError(
                    f"the partitions of a family must cover the same rows: got d={self.d} and "
                    f"d={partition.d}."
                )
            rows, columns = partition.edges().cpu().unbind(-1)
            seen[rows, columns] += 1
        wrong = (seen != 1).triu(1)
        if wrong.any():
            i, j = (int(x) for x in wrong.nonzero()[0])
            raise FamilyError(
                "a non-intersecting family must hold every edge exactly once: edge "
                f"({i}, {j}) lies in {int(seen[i, j])} of the {len(self._members)} partitions."
            )


class _OneBlock(Family):
    """All rows in one block: the exact method as a family."""

    def __init__(self, d: int) -> None:
        self.d = d

    def __len__(self) -> int:
        return 1

    def __getitem__(self, r: int) -> Partition:
        if r != 0:
            raise IndexError(f"`r` must be 0: got {r}.")
        return Partition((torch.arange(self.d)[None],))


class _RoundRobin(Family):
    """The matchings of the circle method; each is computed on access."""

    def __init__(self, d: int) -> None:
        self.d = d

    def __len__(self) -> int:
        return self.d - 1 if self.d % 2 == 0 else self.d

    def __getitem__(self, r: int) -> Partition:
        if not 0 <= r < len(self):
            raise IndexError(f"`r` must lie in 0..{len(self) - 1}: got {r}.")
        pairs = circle(self.d, torch.tensor([r]))[0]
        return Partition((pairs, torch.tensor([[r]])) if self.d % 2 else (pairs,))


class _AffineLines(Family):
    """The parallel classes of lines of AG(n, q), q prime: d = q^n, s = q."""

    def __init__(self, q: int, n: int) -> None:
        self.q, self.n = q, n
        self.d = q**n

    def __len__(self) -> int:
        return (self.d - 1) // (self.q - 1)

    def __getitem__(self, r: int) -> Partition:
        if not 0 <= r < len(self):
            raise IndexError(f"`r` must lie in 0..{len(self) - 1}: got {r}.")
        q, n = self.q, self.n
        pivot = 0
        while r >= q ** (
            n - 1 - pivot
        ):  # directions are 0..0 1 *..*, sorted by the position of the 1
            r -= q ** (n - 1 - pivot)
            pivot += 1
        place = q ** torch.arange(n - 1, -1, -1)  # a point's number is its coordinates in base q
        direction = r // place % q
        direction[pivot] = 1
        points = torch.arange(self.d)[:, None] // place % q  # (d, n)
        start = points[points[:, pivot] == 0]  # one point on each line
        t = torch.arange(q)[None, :, None]
        lines = (start[:, None, :] + t * direction) % q  # (d/q, q, n)
        return Partition(((lines * place).sum(-1).sort(-1).values,))


def circle(d: int, r: Int[Tensor, "n"]) -> Int[Tensor, "n m 2"]:
    """The edges of these matchings of the circle method, all at once, on the device of `r`.

    Example:
        >>> circle(4, torch.arange(3)).tolist()
        [[[1, 2], [0, 3]], [[0, 2], [1, 3]], [[0, 1], [2, 3]]]
    """
    n = d - 1 if d % 2 == 0 else d  # rows 0..n-1 form a circle; for even d, row d-1 is its centre
    step, r = torch.arange(1, (n - 1) // 2 + 1, device=r.device), r[:, None]
    pairs = torch.stack([(r + step) % n, (r - step) % n], dim=-1).sort(-1).values
    if d % 2:
        return pairs
    centre = torch.stack([r, torch.full_like(r, d - 1)], dim=-1)
    return torch.cat([pairs, centre], dim=1)


def round_robin(d: int) -> Family:
    """The circle method: d - 1 perfect matchings (even d) or d near-perfect ones (odd d).

    It is a one-factorisation of K_d, hence a non-intersecting family for s = 2 (Sec. 3.2). Members
    are computed on demand in O(d); nothing of size d^2 is stored.

    Example:
        >>> [sorted(matching) for matching in round_robin(4)]
        [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    _validate.block_size(2, d)
    return _RoundRobin(d)


def non_intersecting(d: int, block_size: int) -> Family:
    r"""A non-intersecting family of partitions of d rows into blocks of s (Sec. 3.2).

    For s = 2 it is the round robin of any d, and for s = d the single block. For other s it is a
    resolvable design, which needs s | d and (s-1) | (d-1). This function covers $d = s^n$ with s
    prime, by the $(d-1)/(s-1)$ parallel classes of lines of the affine space AG(n, s) (not in the
    paper). Pass any other family, also one of uneven blocks, to `Family`.

    Raises:
        FamilyError: If no such family exists, or none is implemented.

    Example:
        >>> len(non_intersecting(8, 2)), len(non_intersecting(25, 5))
        (7, 6)
    """
    s = _validate.block_size(block_size, d)
    if s == d:
        return _OneBlock(d)
    if s == 2:
        return _RoundRobin(d)
    n = _exact_log(d, s)
    if n is not None and _is_prime(s):
        return _AffineLines(s, n)
    if d % s or (d - 1) % (s - 1):
        rule = (
            "none with blocks of equal size exists, because s must divide d and s - 1 must divide "
            f"d - 1 (here {d}/{s} and {d - 1}/{s - 1})"
        )
    else:
        rule = "a resolvable design may exist, but only d = s^n with s prime is implemented"
    raise FamilyError(
        f"no non-intersecting family for d={d}, block_size={s}: {rule}. "
        "Use block_size=2, or the Uniform sampler, which works for any block size."
    )


def _is_prime(q: int) -> bool:
    return q >= 2 and all(q % p for p in range(2, isqrt(q) + 1))


def _exact_log(d: int, s: int) -> int | None:
    """The n >= 2 with s^n = d, or None."""
    n, power = 1, s
    while power < d:
        n, power = n + 1, power * s
    return n if power == d and n >= 2 else None
