"""Block-diagonal semidefinite programs by the Riemannian staircase, with a verified bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from . import cpu
from .cost import Cost, Shifted, SparseCost
from .point import Point
from .reference import Array, polar
from .spectrum import lowest, lowest_by_inverse
from .trust_region import Region

CHUNK = 20
"""Sweeps between two checks of the gradient."""

LARGEST_OMEGA = 1.95
"""Largest over-relaxation. On the Gset graphs 1.9 to 1.95 needs the fewest sweeps in the end;
the first sweeps use less, because far from the optimum exact steps gain more."""

SADDLE = 5.0
"""The rank grows when the least eigenvalue is below -5 times the gradient norm per row: closer to
a critical point the eigenvalue says more about the rank than about the distance to the point."""


FIRST_CHECK = 1e-2
"""Gradient norm, relative to the mean multiplier, at which the dual matrix is first examined."""

ZERO = 1e-14
"""Values below this part of the cost's size are zero up to rounding errors."""

PROVEN_ZERO = 1e-12
"""How close a bound must be to such a value, as a part of the cost's size."""

FAILURES = 10
"""Failed steps in a row, each with a quarter of the radius, after which rounding is to blame."""


@dataclass(frozen=True)
class Stage:
    """What was known at one check."""

    rank: int
    value: float
    slope: float
    """Norm of the Riemannian gradient, per row."""
    bound: float
    """The best lower bound proven so far."""


@dataclass(frozen=True)
class BlockSDP:
    """A solution of a block-diagonal semidefinite program, and how good it is (Sec. 1)."""

    factor: Array
    """Y, (n, p, r): the solution is Z = Y Yᵀ as an (np, np) matrix."""
    value: float
    """<C, Z>, an upper bound on the minimum."""
    bound: float
    """A lower bound on the minimum, proven up to and including rounding errors."""
    multipliers: Array
    """The dual blocks (n, p, p) at `factor`."""
    certified: bool
    """Whether the gap is at most the tolerance, or value and bound are zero up to rounding."""
    history: list[Stage] = field(repr=False)

    @property
    def rank(self) -> int:
        """Columns of the factor."""
        return int(self.factor.shape[-1])

    @property
    def gap(self) -> float:
        """(value - bound) / |value|."""
        return (self.value - self.bound) / max(abs(self.value), 1e-300)


def slack(value: float, size: float, tol: float) -> float:
    """The largest distance of a bound that proves this value."""
    return tol * abs(value) if abs(value) > ZERO * size else PROVEN_ZERO * size + 1e-300


def staircase(
    cost: Cost, Y: Array, *, tol: float, max_rank: int, max_steps: int, sweeps: int
) -> BlockSDP:
    """Minimise over growing ranks until the gap is proven."""
    run = _Run(cost, tol, max_rank)
    point = Point(cost, Y)
    if isinstance(cost, SparseCost) and sweeps:
        point = run.sweep(point, cost, sweeps)
    if not run.done(point):
        point = run.finish(point, max_steps)
    return run.result(point)


class _Run:
    """The bound and the history of one call."""

    def __init__(self, cost: Cost, tol: float, max_rank: int) -> None:
        self.cost, self.tol, self.max_rank = cost, tol, max_rank
        self.bound = -math.inf
        self.history: list[Stage] = []
        self._least_shift = 1e-16 * cost.size / (cost.n * cost.p)

    def slack(self, point: Point) -> float:
        return slack(point.value, self.cost.size, self.tol)

    def done(self, point: Point) -> bool:
        return point.value - self.bound <= self.slack(point)

    def allowed(self, point: Point) -> float:
        """The shift that spends half of the tolerance."""
        return 0.5 * self.slack(point) / (self.cost.n * self.cost.p)

    def factorise(self, point: Point, shift: float, tight: bool = False) -> Shifted | None:
        shifted = self.cost.shifted(point.shift(shift), tight)
        if shifted is not None:
            self.bound = max(self.bound, shifted.bound)
        return shifted

    def record(self, point: Point) -> None:
        self.history.append(Stage(point.Y.shape[-1], point.value, point.slope, self.bound))

    def sweep(self, point: Point, cost: SparseCost, sweeps: int) -> Point:
        """Over-relaxed block steps, until the bound is proven or the sweeps are spent."""
        C = cost.matrix
        level = FIRST_CHECK
        for k in range(sweeps):
            omega = 1 + min(LARGEST_OMEGA - 1, k / (k + 10))
            cpu.sweep(C.indptr, C.indices, C.data, point.Y, omega)
            if (k + 1) % CHUNK:
                continue
            point = Point(cost, point.Y)
            slope = self.tol * point.slope * cost.n * cost.p / self.slack(point)
            if slope > level:
                continue
            level = min(level, slope) / 3
            values, vectors = lowest(cost, point.shift(0.0))
            if values[0] >= -2 * self.allowed(point):
                self.factorise(point, self.allowed(point))
            elif values[0] < -SADDLE * point.slope:
                higher = self.climb(point, values, vectors)
                if higher is not None:
                    point, level = higher, FIRST_CHECK
            self.record(point)
            if self.done(point):
                break
        return Point(cost, point.Y)

    def finish(self, point: Point, max_steps: int) -> Point:
        """Newton steps in a trust region; each factorisation proves a bound as well."""
        region, shift, moved, tight, failed = Region(), math.inf, True, False, 0
        shifted: Shifted | None = None
        for _ in range(max_steps):
            if moved:
                least = self.allowed(point)
                shift = min(shift, max(0.1 * point.slope, least))
                while (shifted := self.factorise(point, shift, tight)) is None:
                    shift = max((1.5 if tight else 5.0) * shift, self._least_shift)
                self.record(point)
                if self.done(point):
                    break
                if tight:
                    break
                if shift > max(SADDLE * point.slope, 5 * least):
                    values, vectors = lowest_by_inverse(self.cost, shifted, point)
                    higher = self.climb(point, values + least, vectors)
                    if higher is not None:
                        point, region, shift = higher, Region(), math.inf
                        continue
                if point.slope <= least:  # what is missing is in the rounding of the proof
                    tight, shift = True, least
                    continue
            assert shifted is not None
            better = region.step(self.cost, point, shifted.solve)
            moved = better is not None
            failed = 0 if moved else failed + 1
            point = better or point
            if failed > FAILURES:
                break
        return point

    def climb(self, point: Point, values: Array, vectors: Array) -> Point | None:
        """Leave a saddle along negative eigenvectors in new columns; None if nothing is gained."""
        new = vectors[..., values < 0][..., : max(1, point.Y.shape[-1] // 2)]
        room = self.max_rank - point.Y.shape[-1]
        new = new[..., :room]
        if new.shape[-1] == 0:
            return None
        length = 0.3 * math.sqrt(self.cost.n * self.cost.p / new.shape[-1])
        for _ in range(12):
            Y = np.ascontiguousarray(np.concatenate([point.Y, length * new], axis=-1))
            cpu.retract(Y)
            higher = Point(self.cost, Y)
            if higher.value < point.value:
                return higher
            length /= 3
        return None

    def result(self, point: Point) -> BlockSDP:
        if self.bound == -math.inf:  # no shift so far: take the first that works
            shift = max(point.slope, self.allowed(point))
            while self.factorise(point, shift) is None:
                shift = max(5 * shift, self._least_shift)
        self.record(point)
        return BlockSDP(
            factor=point.Y,
            value=point.value,
            bound=self.bound,
            multipliers=point.multipliers,
            certified=self.done(point),
            history=self.history,
        )


def random_point(n: int, p: int, r: int, seed: int) -> Array:
    """Independent Haar-distributed blocks."""
    return polar(np.random.default_rng(seed).standard_normal((n, p, r)))
