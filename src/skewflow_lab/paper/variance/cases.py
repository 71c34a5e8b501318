"""The samplers that are compared, with the formulas of their variances."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skewflow.samplers import (
    HeavyMatchings,
    HRegular,
    Importance,
    Optimal,
    RoundRobin,
    Sampler,
    Sparsified,
    Uniform,
)
from skewflow.tournaments import EdgeWeights, heavy_matchings, round_robin
from skewflow.tournaments.theory import (
    family_optimal_variance,
    h_regular_inclusion_dense,
    horvitz_thompson_variance,
    uniform_variance,
)

Formula = Callable[[EdgeWeights, int], float]
KEPT = "heavy matchings, a step old"


@dataclass(frozen=True)
class Case:
    """A sampler for a block size, and the formula of its variance if one exists."""

    make: Callable[[int, int], Sampler]
    """Makes the sampler from d and s."""
    variance: Formula | None = None
    """Computes the variance from the weights and s."""
    matchings_only: bool = False
    """Whether it draws only matchings."""


def _inclusion(h: Any) -> Formula:
    return lambda W, s: horvitz_thompson_variance(W, h_regular_inclusion_dense(W, s, h))


CASES: dict[str, Case] = {
    "uniform": Case(lambda d, s: Uniform(s), uniform_variance),
    "abs": Case(lambda d, s: HRegular(s, "abs")),
    "square": Case(lambda d, s: HRegular(s, "square"), uniform_variance),
    "abs HT": Case(lambda d, s: HRegular(s, "abs", horvitz_thompson=True), _inclusion("abs")),
    "square HT": Case(
        lambda d, s: HRegular(s, "square", horvitz_thompson=True), _inclusion("square")
    ),
    "optimal": Case(lambda d, s: Optimal(s)),
    "round robin": Case(
        lambda d, s: RoundRobin(), lambda W, s: (len(round_robin(W.d)) - 1) * W.squared_norm(), True
    ),
    "round robin, optimal": Case(
        lambda d, s: Importance(round_robin(d)),
        lambda W, s: family_optimal_variance(W, round_robin(W.d)),
        True,
    ),
    "heavy matchings": Case(
        lambda d, s: HeavyMatchings(refresh=1),
        lambda W, s: family_optimal_variance(W, heavy_matchings(W)),
        True,
    ),
    KEPT: Case(lambda d, s: HeavyMatchings(refresh=10**6), None, True),
    "sparsified, d edges": Case(lambda d, s: Sparsified(d), None, True),
}
"""The samplers; HT means Horvitz-Thompson weights. "square" has the uniform variance (Lemma 9.5).
Heavy matchings are built from the Omega to which they are applied or, under KEPT, from that of the
previous training step, which only real gradients have."""
