r"""How fast products of random rotations approach Haar measure (Sec. 9.9, Eq. 29)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from skewflow import _validate
from skewflow.errors import ShapeError
from skewflow.geometry import haar
from skewflow.geometry.precision import no_autocast
from skewflow.tournaments import block_sizes
from skewflow.tournaments.partitions import BlockSize, SizeCounts

from ..batched import draw_orders, turn_blocks, turn_pairs

POWERS = (1, 2, 4)
"""The powers of the trace whose means are compared."""


@dataclass(frozen=True, eq=False)
class Mixing:
    r"""Statistics of many independent products against the number of rotations in each.

    Args:
        rotations: Givens rotations so far (n,); a Haar block of s rows counts as $s(s-1)/2$.
        moments: Sample means of tr, tr^2 and tr^4 (n, 3).
        moment_errors: Their standard errors (n, 3).
        spacing: Sample mean of `largest_spacing` (n,).
        spacing_error: Its standard error (n,).

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> haar_mixing(6, 2, num_steps=2, num_samples=10, generator=g).rotations
        tensor([0, 3, 6])
    """

    rotations: Int[Tensor, "n"]
    moments: Float[Tensor, "n 3"]
    moment_errors: Float[Tensor, "n 3"]
    spacing: Float[Tensor, "n"]
    spacing_error: Float[Tensor, "n"]


@no_autocast()
def random_rotations(
    X: Float[Tensor, "n d d"], block_size: BlockSize, *, generator: torch.Generator
) -> Float[Tensor, "n d d"]:
    r"""One step towards Haar measure: every matrix turns the blocks of a separate random partition.

    Blocks of s rows turn by independent Haar rotations of SO(s): the matching-based integrator of
    Eq. 29 for s = 2, whose angles are uniform, and its generalisation for s > 2. Sizes
    (2, 1, ..., 1) are the standard method, one random Givens rotation a step.

    Args:
        X: Points, not modified; a batch of independent products.
        block_size: s, or every block's size.
        generator: Source of randomness.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> X = random_rotations(torch.eye(4, dtype=torch.float64)[None], 2, generator=g)
        >>> (X != 0).sum().item()  # two planes turned
        8
    """
    _validate.square(X, "X")
    if X.ndim != 3:
        raise ShapeError(f"`X` must be a batch (n, d, d): got shape {tuple(X.shape)}.")
    n, d, _ = X.shape
    sizes = block_sizes(d, block_size)
    order = draw_orders(n, d, generator).to(X.device)
    start = 0
    for size, count in sizes:
        rows = order[:, start : start + size * count].reshape(n, count, size)
        start += size * count
        if size == 2:  # a rotation of the plane by a uniform angle
            u = torch.rand(n, count, generator=generator, dtype=X.dtype, device=generator.device)
            X = turn_pairs(X, rows, 2 * math.pi * u.to(X.device))
        elif size > 2:
            R = haar(size, special=True, batch=(n, count), generator=generator, dtype=X.dtype)
            X = turn_blocks(X, rows, R.to(X.device))
    return X


def haar_mixing(
    d: int,
    block_size: BlockSize,
    *,
    num_steps: int,
    num_samples: int,
    generator: torch.Generator,
    record_every: int = 1,
) -> Mixing:
    r"""Statistics of `random_rotations` from I after 0, 1, ... steps (Sec. 9.9).

    The products stay in SO(d), so they are compared with Haar measure there (`haar_moments`), not
    with O(d) as the paper has it.

    Args:
        d: Number of rows.
        block_size: s; (2, 1, ..., 1) for independent Givens rotations.
        num_steps: Steps of each product.
        num_samples: Independent products.
        generator: Source of randomness.
        record_every: Steps between two rows of the result.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> mixing = haar_mixing(6, 2, num_steps=40, num_samples=500, generator=g, record_every=40)
        >>> mixing.moments[0]  # the identity
        tensor([   6.,   36., 1296.], dtype=torch.float64)
        >>> bool((mixing.moments[-1, 1] - 1).abs() < 5 * mixing.moment_errors[-1, 1])
        True
    """
    for value, name in (
        (num_steps, "num_steps"),
        (num_samples, "num_samples"),
        (record_every, "record_every"),
    ):
        _validate.count(value, name)
    _validate.generator(generator)
    a_step = _num_rotations(block_sizes(d, block_size))
    X = torch.eye(d, dtype=torch.float64, device=generator.device).repeat(num_samples, 1, 1)
    rows = [(0, *_statistics(X))]
    for step in range(1, num_steps + 1):
        X = random_rotations(X, block_size, generator=generator)
        if step % record_every == 0 or step == num_steps:
            rows.append((step * a_step, *_statistics(X)))
    rotations, *columns = zip(*rows, strict=True)
    return Mixing(torch.tensor(rotations), *(torch.stack(column) for column in columns))


def haar_moments(d: int) -> Float[Tensor, "3"]:
    r"""E tr, E tr^2 and E tr^4 of Haar measure on SO(d), exactly.

    For d >= 5 and d = 3 they are 0, 1 and 3, as on O(d), because the determinant does not occur in
    this tensor power. Otherwise it adds one invariant (d = 4) or more (d = 2) (not in the paper).

    Example:
        >>> haar_moments(8), haar_moments(4)
        (tensor([0., 1., 3.], dtype=torch.float64), tensor([0., 1., 4.], dtype=torch.float64))
    """
    if d < 2:
        raise ShapeError(f"rotations need at least d=2 rows: got d={d}.")
    values = {2: (0.0, 2.0, 6.0), 4: (0.0, 1.0, 4.0)}.get(d, (0.0, 1.0, 3.0))
    return torch.tensor(values, dtype=torch.float64)


def largest_spacing(X: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch"]:
    r"""The largest gap between neighbouring eigenphases, over the mean gap $2\pi/d$.

    Haar eigenphases repel, so their largest gap is small; the identity's is d. There is no simple
    formula: compare with ``largest_spacing(haar(d, special=True, batch=(n,)))`` (not in the paper).

    Example:
        >>> largest_spacing(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        tensor(1.)
    """
    _validate.square(X, "X")
    phases = torch.linalg.eigvals(X).angle().sort(-1).values
    around = phases[..., :1] + 2 * math.pi
    gaps = torch.cat([phases, around], dim=-1).diff(dim=-1)
    return gaps.amax(-1) * (X.shape[-1] / (2 * math.pi))


def _num_rotations(sizes: SizeCounts) -> int:
    return sum(count * size * (size - 1) // 2 for size, count in sizes)


def _statistics(X: Float[Tensor, "n d d"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    trace = X.diagonal(dim1=-2, dim2=-1).sum(-1)
    powers = torch.stack([trace**p for p in POWERS], dim=-1)  # (n, 3)
    gaps = largest_spacing(X)
    root = math.sqrt(len(X))
    return (
        powers.mean(0),
        powers.std(0, correction=0) / root,
        gaps.mean(),
        gaps.std(correction=0) / root,
    )
