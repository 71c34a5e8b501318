r"""Theorem 5.1 on a quadratic whose constants are known: the bound and the measured norms."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from skewflow import _validate
from skewflow.flows import Brockett
from skewflow.geometry import haar
from skewflow.tournaments import edge_probability
from skewflow.tournaments.theory import gradient_norm_bound

from ..batched import draw_orders, turn_pairs


@dataclass(frozen=True, eq=False)
class Convergence:
    r"""The squared gradient norms of Theorem 5.1, and its bound.

    Args:
        eta: The constant step size.
        squared_norms: $\|\Omega(X_i)\|_F^2$ averaged over the runs, for each step i.
        standard_errors: Standard errors of these means.
        bound: The right side of the theorem for runs of all these steps.
        trivial_bound: $4\|A\|^2\|N\|_F^2$ (both centred), which no $\|\Omega\|_F^2$ exceeds.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> result = quadratic_convergence(4, num_steps=50, num_runs=20, generator=g)
        >>> bool(result.squared_norms.min() <= result.bound)
        True
    """

    eta: float
    squared_norms: Float[Tensor, "n"]
    standard_errors: Float[Tensor, "n"]
    bound: float
    trivial_bound: float


def quadratic_convergence(
    d: int, *, num_steps: int, num_runs: int, generator: torch.Generator
) -> Convergence:
    r"""Ascend $F(X) = \frac12\mathrm{tr}(X^\top A X N)$ by uniform matchings from one Haar start.

    A = diag(a) and N = diag(n) are equally spaced in [-1, 1], so all constants are exact:
    $F^* = \frac12\sum a_i n_i$ in sorted order, $L = 1$,
    $\sigma^2 = \frac1{P(e)} 4\|A\|^2\|N\|_F^2$. The step size is the constant one that makes the
    bound smallest. Matchings are drawn independently at every step, as the theorem requires.

    Args:
        d: Number of rows.
        num_steps: Steps of each run.
        num_runs: Independent runs from the same start, to average over.
        generator: Source of randomness.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> quadratic_convergence(6, num_steps=10, num_runs=2, generator=g).squared_norms.shape
        torch.Size([10])
    """
    _validate.block_size(2, d)
    _validate.count(num_steps, "num_steps")
    _validate.count(num_runs, "num_runs")
    _validate.generator(generator)
    values = torch.linspace(1, -1, d, dtype=torch.float64, device=generator.device)
    field = Brockett(torch.diag(values), values)
    X = haar(d, generator=generator, dtype=torch.float64)
    scale = float(1 / edge_probability(d, 2))
    trivial = 4 * values.square().sum().item()  # |Omega| <= 2 |A| |X N X^T|_F, with |A| = 1
    gap = values.square().sum().item() / 2 - field.value(X).item()
    at_identity = values.square().norm().item()
    slope = scale * trivial * (2 * math.sqrt(d) + 1 + at_identity)
    eta = math.sqrt(2 * gap / (slope * num_steps))
    bound = gradient_norm_bound(
        gap=gap,
        second_moment=scale * trivial,
        lipschitz=1.0,
        gradient_at_identity=at_identity,
        d=d,
        step_sizes=[eta] * num_steps,
    )
    X = X.repeat(num_runs, 1, 1)
    means, errors = [], []
    for _ in range(num_steps):
        omega = field(0.0, X)
        squares = omega.square().sum((-2, -1))
        means.append(squares.mean())
        errors.append(squares.std(correction=0) / math.sqrt(num_runs))
        pairs = draw_orders(num_runs, d, generator)[:, : d - d % 2].reshape(num_runs, -1, 2)
        run = torch.arange(num_runs, device=X.device)[:, None]
        X = turn_pairs(X, pairs, eta * scale * omega[run, pairs[..., 0], pairs[..., 1]])
    return Convergence(eta, torch.stack(means), torch.stack(errors), bound, trivial)
