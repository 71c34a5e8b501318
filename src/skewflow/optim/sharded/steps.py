"""The steps of one sharded weight, from its gradient to its new point, with the sums between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..._typing import MatrixBlocks
from ...errors import NonFiniteGradientError
from ...geometry.precision import users_precision
from ...kernels.exact_step import exact_step
from ...kernels.rotate_factored.dispatch import is_worth_it
from ...kernels.row_moments.reference import moments_of
from ...kernels.tangent import tangent_part
from ...kernels.turn_by_angle.exact import direction_by_angle as whole_direction
from ...kernels.update import LARGEST_GRADIENT, Update, direction
from ..auto import Choice
from ..gradient import Factors, Gradient
from .angle_direction import direction_by_angle
from .block_step import entries, estimates, turn_
from .exact_step import polar_step, thin_step
from .factored_step import factored_step
from .rounds import REFUSED, Steps, Sum

if TYPE_CHECKING:
    from .weight import ShardedWeight


@dataclass
class Ready:
    """A step whose sums have arrived.

    Args:
        write: Write the new point, momentum and moments.
        blocks: For each matrix the generator inside of its blocks; none of an exact step.
    """

    write: Callable[[], None]
    blocks: Sequence[MatrixBlocks] = ()


@dataclass
class Now:
    """A weight at a step, as the matrices of this process.

    Args:
        weight: The weight.
        choice: Its block size and retraction.
        X: Its points.
        G: Its gradients, or their factors.
        M: Its momentum, or None.
        squares: The second moments of all rows (n, d), of all matrices of the weight, or None.
        update: The numbers of the step.
        time: Steps done.
        taken: Steps that the weight has taken.
        skips: Leave the weight out if its gradient is not finite.
    """

    weight: "ShardedWeight"
    choice: Choice
    X: Float[Tensor, "n d k"]
    G: Gradient
    M: Float[Tensor, "n d k"] | None
    squares: Float[Tensor, "N D"] | None
    update: Update
    time: int
    taken: int


def steps_of(now: Now, skips: bool) -> Steps:
    """The steps of a weight; they end with a `Ready`, or with None if it is left out.

    Every process must do the same, so whether a gradient is finite is added up, too.

    Raises:
        NonFiniteGradientError: In every process, if a part of the gradient is not finite.
        RuntimeError: If another process refuses the step.
    """
    if isinstance(now.G, Factors):
        bad, inner = _bad_factors(now.G), _by_factors(now, now.G)
    else:
        by_blocks = isinstance(now.choice.size, int)
        bad, inner = _bad(now.G), _by_blocks(now, now.G) if by_blocks else _exactly(now, now.G)
    flag = bad.to(now.X.dtype)
    request = [*next(inner), Sum(flag, now.weight.placement.all_groups)]
    *sums, bad = yield request
    if float(bad):
        _check_refusals(bad)
        if skips:
            return None
        raise _unusable(now)
    try:
        wanted = inner.send(sums)
        while True:
            wanted = inner.send((yield wanted))
    except StopIteration as end:
        return end.value


def refusals(weight: "ShardedWeight") -> Steps:
    """No step, but the sum by which the other processes refuse theirs.

    Raises:
        RuntimeError: If one of them does.
    """
    flag = torch.zeros((), dtype=weight.p.dtype, device=weight.p.device)
    (flag,) = yield [Sum(flag, weight.placement.all_groups)]
    _check_refusals(flag)


def _check_refusals(flag: Tensor) -> None:
    if float(flag) >= REFUSED:
        raise RuntimeError(
            "a step of sharded weights needs every process, and another one refuses this step: "
            "its error says why. Nothing was changed."
        )


def _by_factors(now: Now, given: Factors) -> Steps:
    """An exact step by factors; where rows are split, high ranks are multiplied out."""
    X, (A, B), lr = now.X, (given.A.to(now.X), given.B.to(now.X)), now.update.lr
    place, (_, d, k) = now.weight.placement, now.weight.view.matrices
    assert place.split != "both"
    if place.split != "columns" and not is_worth_it(given.rank, d, k, X.device):
        with users_precision(X):
            G = A @ B.mT
        return (yield from _exactly(now, G))
    lr = -lr if now.update.maximize else lr
    Y = yield from factored_step(X, A, B, lr, place.split, place.groups)
    return _writer(now, Y, None, None)


def _by_blocks(now: Now, G: Float[Tensor, "n d k"]) -> Steps:
    """Form the sums of a block step."""
    from ...kernels.permutation.partition_cpu import partition_at  # numba, on use

    weight, size = now.weight, now.choice.size
    assert isinstance(size, int)
    place, (n, d, _) = weight.placement, now.X.shape
    D, new = direction(G.to(now.X.dtype), now.M, now.update)
    stream = weight.stream + place.first
    partitions = [
        partition_at(d, size, now.update, stream + b, now.time, now.X.device) for b in range(n)
    ]
    request = [Sum(entries(now.X, D, partitions), place.groups)]
    if now.squares is not None:
        request.append(_row_squares(now, G))
    lower, *sums = yield request
    squares, moments = _moments(now, sums)
    columns = weight.view.matrices[2]
    drawn = estimates(lower, partitions, moments, now.update.angle, columns)

    def write() -> None:
        if now.squares is not None and squares is not None:
            now.squares.copy_(squares)
        if now.M is not None and new is not None:
            now.M.copy_(new)
        turn_(now.X, now.M, drawn, now.update)

    return Ready(write, [blocks for _, blocks in drawn])


def _exactly(now: Now, G: Float[Tensor, "n d k"]) -> Steps:
    """An exact step; without other processes it is that of `kernels`."""
    X, update, retraction = now.X, now.update, now.choice.retraction
    groups = now.weight.placement.groups
    D, new = direction(G.to(X.dtype), now.M, update)
    request = [_row_squares(now, G)] if now.squares is not None else []
    if not groups:
        squares, moments = _moments(now, (yield request))
        tangent = None if new is None else tangent_part(X, new)
        if update.angle is not None and X.numel():
            D = whole_direction(X, D, update.angle)
        Y = exact_step(X, D, update.lr, retraction, moments) if X.numel() else X
        return _writer(now, Y, tangent, squares)
    with users_precision(X):
        parts = [X.mT @ D] + ([X.mT @ new] if update.nesterov and new is not None else [])
    norm = torch.linalg.vector_norm(D, dim=(-2, -1), dtype=torch.float64).to(X.dtype)
    S, *others = yield [Sum(part, groups) for part in (*parts, norm)] + request
    S_new = others.pop(0) if len(parts) > 1 else S
    norm, *sums = others
    tangent = None if new is None else tangent_part(X, new, S_new)
    squares, moments = _moments(now, sums)
    if moments is not None:  # the generator is not formed, so single planes cannot be divided
        c = moments.mean(-1).sqrt().to(X.dtype)
        D, S, norm = D / c[:, None, None], S / c[:, None, None], norm / c
    if update.angle is not None:
        D, S, norm = yield from direction_by_angle(
            X, D, S, norm, update.angle, now.weight.d, groups
        )
    take: Callable[..., Any] = polar_step if retraction == "polar" else thin_step
    Y = yield from take(X, D, S, norm, update.lr, groups)
    return _writer(now, Y, tangent, squares)


def _writer(now: Now, Y: Tensor, tangent: Tensor | None, squares: Tensor | None) -> Ready:
    def write() -> None:
        now.X.copy_(Y)
        if now.squares is not None and squares is not None:
            now.squares.copy_(squares)
        if now.M is not None and tangent is not None:
            now.M.copy_(tangent)

    return Ready(write)


def _row_squares(now: Now, G: Float[Tensor, "n d k"]) -> Sum:
    """The mean squares of the rows of the gradient, among those of all rows of the weight."""
    assert now.squares is not None
    weight, G = now.weight, G.to(now.squares.dtype)
    part = torch.zeros_like(now.squares)
    first, n, k = weight.placement.first, len(G), weight.view.matrices[2]
    mean = G.square().sum(-1) / k
    if weight.placement.split == "rows":
        part[first : first + n, weight.rows.to(part.device)] = mean
    else:
        part[first : first + n] = mean
    return Sum(part, weight.placement.all_groups)


def _moments(now: Now, sums: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """The new second moments, and the divisors of the planes of the matrices here."""
    if now.squares is None:
        return None, None
    squares, first = now.squares.clone(), now.weight.placement.first
    moments = moments_of(squares, sums[0], now.taken, now.update)
    return squares, moments[first : first + len(now.X)]


def _bad(G: Tensor) -> Tensor:
    """1 if a part of a gradient is not finite, or has entries whose squares overflow."""
    if not G.numel():
        return torch.zeros((), device=G.device)
    return 1 - (G.abs().amax() <= LARGEST_GRADIENT[G.dtype]).float()  # false for NaN


def _bad_factors(given: Factors) -> Tensor:
    """1 if factors are not finite, or their product could overflow."""
    a, b = (_largest(F) for F in (given.A, given.B))
    most = LARGEST_GRADIENT[given.A.dtype]
    fine = (a <= most) & (b <= most) & (a * b * given.rank <= most)
    return 1 - fine.float()


def _largest(F: Tensor) -> Tensor:
    return F.abs().amax().double() if F.numel() else F.new_zeros((), dtype=torch.float64)


def _unusable(now: Now) -> NonFiniteGradientError:
    most = LARGEST_GRADIENT[now.X.dtype]
    return NonFiniteGradientError(
        f"the gradient of {now.weight.name} must be finite: on at least one process it holds NaN, "
        f"infinity or an entry above {most:.0e}, where products overflow. Nothing was changed; "
        "lower the learning rate, clip, or look for the overflow in the model; "
        'nonfinite="skip" leaves such weights out.'
    )
