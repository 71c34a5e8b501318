"""The cases that every sampler's law is tried on: sizes, weights, and each sampler's variance."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from helpers import randn, random_skew
from skewflow import samplers
from skewflow.errors import FamilyError
from skewflow.samplers import Sampler
from skewflow.tournaments import EdgeWeights, heavy_matchings, non_intersecting
from skewflow.tournaments.theory import (
    family_h_variance,
    family_optimal_variance,
    h_regular_inclusion_dense,
    h_regular_variance,
    horvitz_thompson_variance,
    optimal_variance,
    uniform_variance,
)

SIZES = [(d, s) for d in range(4, 10) for s in (2, 3, 4)]
"""Rows and block sizes: s dividing d and not, odd d, and (4, 4), which is exact."""

PATTERNS = [
    (2, 2, 1),
    (2, 2, 2),
    (3, 3),
    (2, 2, 2, 1),
    (3, 2, 2),
    (3, 3, 1),
    (4, 3),
    (3, 3, 2),
    (4, 4),
]
"""Explicit block sizes, even and uneven, for formulas that hold for any sizes."""


def skew_from(upper: Tensor) -> Tensor:
    """The skew matrix with the given upper triangle."""
    upper = upper.triu(1)
    return upper - upper.mT


def gaussian(d: int, generator: torch.Generator) -> Tensor:
    return random_skew(d, generator=generator)


def heavy(d: int, generator: torch.Generator) -> Tensor:
    """Gaussians over a small power of a chi-square: a few edges carry most of the weight."""
    z, u = randn(d, d, generator=generator), randn(d, d, 3, generator=generator)
    return skew_from(z / (u.square().sum(-1) / 3) ** (1 / 1.5))


def low_rank(d: int, generator: torch.Generator) -> Tensor:
    u, v = randn(d, 1, generator=generator), randn(d, 1, generator=generator)
    return u @ v.mT - v @ u.mT


def spike(d: int, generator: torch.Generator) -> Tensor:
    """One dominant edge."""
    omega = 0.05 * random_skew(d, generator=generator)
    omega[0, 1], omega[1, 0] = 10.0, -10.0
    return omega


def sparse(d: int, generator: torch.Generator) -> Tensor:
    """Half of the edges have weight zero, one row only zeros."""
    omega = random_skew(d, generator=generator)
    drop = (torch.rand(d, d, generator=generator) < 0.5).triu(1)
    omega[drop | drop.mT] = 0.0
    omega[-1], omega[:, -1] = 0.0, 0.0
    return omega


WEIGHTS = {f.__name__: f for f in (gaussian, heavy, low_rank, spike, sparse)}


@dataclass(frozen=True)
class Case:
    """A sampler and the formula of its variance."""

    sampler: Sampler
    variance: Callable[[EdgeWeights], float]


def cubed(w: Tensor) -> Tensor:
    """An h of the user's own."""
    return w.abs() ** 3


def t_s_cases(s: int) -> dict[str, Case]:
    """The samplers on T_s."""
    cases = {
        "uniform": Case(samplers.Uniform(s), lambda W: uniform_variance(W, s)),
        "optimal": Case(samplers.Optimal(s), lambda W: optimal_variance(W, s)),
        # At d <= 14 every Omega is (0.1, 0.1)-balanced in the sense that Balanced needs.
        "balanced": Case(samplers.Balanced(s), lambda W: h_regular_variance(W, s)),
    }
    for h in ("abs", "square", "sqrt", cubed):
        name = h if isinstance(h, str) else h.__name__
        cases[f"h_regular-{name}"] = Case(
            samplers.HRegular(s, h), lambda W, h=h: h_regular_variance(W, s, h)
        )
        cases[f"horvitz_thompson-{name}"] = Case(
            samplers.HRegular(s, h, horvitz_thompson=True),
            lambda W, h=h: horvitz_thompson_variance(W, h_regular_inclusion_dense(W, s, h)),
        )
    return cases


def family_cases(d: int, s: int) -> dict[str, Case]:
    """The samplers on non-intersecting families of d rows, where there is one."""
    try:
        family = non_intersecting(d, s)
    except FamilyError:
        return {}
    n = len(family)
    cases = {
        "round_robin": Case(
            samplers.RoundRobin(block_size=s), lambda W: (n - 1) * W.squared_norm()
        ),
        "round_robin-replacement": Case(
            samplers.RoundRobin(replacement=True, block_size=s),
            lambda W: (n - 1) * W.squared_norm(),
        ),
        "relabelled": Case(
            samplers.RelabelledRoundRobin(block_size=s), lambda W: uniform_variance(W, s)
        ),
        "importance": Case(
            samplers.Importance(family), lambda W: family_optimal_variance(W, family)
        ),
        "importance-abs": Case(
            samplers.Importance(family, "abs"), lambda W: family_h_variance(W, family, "abs")
        ),
    }
    if s == 2:
        for method in ("exact", "greedy", "locally-heaviest"):
            cases[f"heavy-{method}"] = Case(
                samplers.HeavyMatchings(method),
                lambda W, m=method: family_optimal_variance(W, heavy_matchings(W, m)),
            )
    return cases


def all_cases(d: int, s: int) -> dict[str, Case]:
    """Every sampler that has a law at (d, s), with its variance formula."""
    return t_s_cases(s) | family_cases(d, s)


def one_factorisations_of_k6() -> list[list[frozenset[tuple[int, int]]]]:
    """All ways to split the edges of K6 into five perfect matchings, by search."""
    from skewflow.tournaments.theory import enumerate_partitions

    matchings = [frozenset(T) for T in enumerate_partitions(6, 2)]

    def extend(chosen: list[frozenset[tuple[int, int]]], start: int) -> Iterator[list]:
        if len(chosen) == 5:
            yield list(chosen)
            return
        for index in range(start, len(matchings)):
            if all(matchings[index].isdisjoint(m) for m in chosen):
                yield from extend([*chosen, matchings[index]], index + 1)

    return list(extend([], 0))
