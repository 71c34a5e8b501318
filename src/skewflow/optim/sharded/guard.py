r"""The drift guard of a sharded weight: the residual along a vector of signs, and the polish.

Blocks turn the rows of all columns by the same rotations, so the error grows as that of a whole
weight does. Exact steps end with their own Gram matrix and need no guard.
"""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from ...geometry.precision import full_precision
from ...kernels.permutation.reference import make_key, mix, scalar
from .rounds import Groups, Request, Sum

if TYPE_CHECKING:
    from .weight import ShardedWeight

CHUNK = 64
"""Columns that a polish sends at once."""


def residual(weight: "ShardedWeight", check: int) -> Generator[Request, Sequence[Tensor], float]:
    r"""The largest $\|(X^\top X - I)z\| / \sqrt k$ over the matrices, z random signs.

    Like `kernels.polish.residuals`, but by sums over processes: d numbers where columns are split,
    and k where rows are.
    """
    place = weight.placement
    X = weight.local(weight.p.detach())
    n, _, k_here = X.shape
    k = weight.view.matrices[2]
    # Each process draws the signs of its own columns; where rows are split, all draw the same.
    rank = _number(place.groups) if place.split == "columns" else 0
    stream = weight.stream + place.first + 7919 * rank
    key = make_key(scalar(check, X.device), scalar(stream, X.device), scalar(rank, X.device))
    bits = mix(torch.arange(n * k_here, device=X.device) ^ key) & 1
    z = (1 - 2 * bits).to(X.dtype).view(n, k_here, 1)
    by_columns = place.groups if place.split == "columns" else ()
    by_rows = place.groups if place.split == "rows" else ()
    with full_precision():
        (y,) = yield [Sum(X @ z, by_columns)]
        (w,) = yield [Sum(X.mT @ y, by_rows)]
    squares = (w - z).double().square().sum((-2, -1))
    (total,) = yield [Sum(squares, by_columns)]
    worst = (total / k).sqrt().nan_to_num(torch.inf)
    # Of several matrices on several processes, each counts.
    batch = [group for group in place.all_groups if group not in place.groups]
    largest = worst.amax() if n else worst.new_zeros(())
    for group in batch:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    return float(largest)


def polish(weight: "ShardedWeight") -> Generator[Request, Sequence[Tensor], Any]:
    r"""One Newton-Schulz step $X \leftarrow X - \frac12 X(X^\top X - I)$, in place.

    Where columns are split, `CHUNK` of them at a time go to all processes, and their correction
    comes back: the matrix is sent twice, but never held.
    """
    place = weight.placement
    X = weight.local(weight.p.detach())
    with full_precision():
        if place.split != "columns":
            (P,) = yield [Sum(X.mT @ X, place.groups)]
            P.diagonal(dim1=-2, dim2=-1).sub_(1)
            X.sub_(X @ P, alpha=0.5)
            return None
        sizes, first = yield from _columns(X, place.groups)
        total, correction = sum(sizes), torch.empty_like(X)
        for start in range(0, total, CHUNK):
            stop = min(start + CHUNK, total)
            mine = slice(max(start, first), max(min(stop, first + X.shape[-1]), max(start, first)))
            theirs = slice(mine.start - start, mine.stop - start)
            here = slice(mine.start - first, mine.stop - first)
            part = X.new_zeros(*X.shape[:-1], stop - start)
            part[..., theirs] = X[..., here]
            (chunk,) = yield [Sum(part, place.groups)]
            (moved,) = yield [Sum(X @ (X.mT @ chunk), place.groups)]
            correction[..., here] = (moved - chunk)[..., theirs]
        X.sub_(correction, alpha=0.5)
    return None


def _columns(
    X: Tensor, groups: Groups
) -> Generator[Request, Sequence[Tensor], tuple[list[int], int]]:
    """The number of columns of each process in some order, and where those of this one begin."""
    counts = torch.zeros(_count(groups), dtype=torch.int64, device=X.device)
    counts[_number(groups)] = X.shape[-1]
    (counts,) = yield [Sum(counts, groups)]
    sizes = [int(c) for c in counts]
    return sizes, sum(sizes[: _number(groups)])


def _number(groups: Groups) -> int:
    """The number of this process among those of all groups."""
    number = 0
    for group in groups:
        number = number * dist.get_world_size(group) + dist.get_rank(group)
    return number


def _count(groups: Groups) -> int:
    count = 1
    for group in groups:
        count *= dist.get_world_size(group)
    return count
