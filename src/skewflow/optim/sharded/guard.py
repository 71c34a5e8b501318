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


def chunk(k: int) -> int:
    """Columns that a step sends while a weight is polished whose k columns are split.

    At most a quarter, so that no step sends the matrix.
    """
    return min(64, -(-k // 4))


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
    largest = worst.amax() if n else worst.new_zeros(())
    for dim in place.batch:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=place.mesh.get_group(dim))
    return float(largest)


def polish(weight: "ShardedWeight") -> Generator[Request, Sequence[Tensor], Any]:
    r"""One Newton-Schulz step $X \leftarrow X - \frac12 X(X^\top X - I)$, in place.

    Where columns are split, their chunks follow one another.
    """
    place = weight.placement
    X = weight.local(weight.p.detach())
    if place.split == "columns":
        k = weight.view.matrices[2]
        for start in range(0, k, chunk(k)):
            yield from polish_chunk(weight, start)
        return None
    with full_precision():
        (P,) = yield [Sum(X.mT @ X, place.groups)]
        P.diagonal(dim1=-2, dim2=-1).sub_(1)
        X.sub_(X @ P, alpha=0.5)
    weight.write_back({}, X)
    return None


def polish_chunk(weight: "ShardedWeight", start: int) -> Generator[Request, Sequence[Tensor], Any]:
    r"""Polish some columns of a weight whose columns are split, in place.

    The columns C go to all processes, and their products with the others come back. With
    $P = X^\top X - I$ the step $X_C \leftarrow X_C - XP_{\cdot C} + \frac12 X_CP_{CC}$ makes them
    orthogonal to each other and to all others, so one round over the chunks polishes the weight.

    Args:
        weight: The weight.
        start: The number of the first column, in an order that all processes share.
    """
    X, groups = weight.local(weight.p.detach()), weight.placement.groups
    with full_precision():
        sizes, first = yield from _columns(X, groups)
        stop = min(start + chunk(sum(sizes)), sum(sizes))
        mine = slice(*(min(max(n - first, 0), X.shape[-1]) for n in (start, stop)))
        part = X.new_zeros(*X.shape[:-1], stop - start)
        offset = max(first - start, 0)
        theirs = slice(offset, offset + mine.stop - mine.start)
        part[..., theirs] = X[..., mine]
        (C,) = yield [Sum(part, groups)]
        (moved,) = yield [Sum(X @ (X.mT @ C), groups)]
        P = C.mT @ C
        P.diagonal(dim1=-2, dim2=-1).sub_(1)
        X[..., mine] -= (moved - C - C @ P / 2)[..., theirs]
    weight.write_back({}, X)
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
