"""Theorem 5.1 on a quadratic: the constants are right and the bound holds."""

import pytest
import torch

from flow_cases import Play
from helpers import assert_close
from skewflow.errors import BlockSizeError
from skewflow.flows import Brockett, integrate
from skewflow.geometry import haar
from skewflow.tournaments.theory import gradient_norm_bound
from skewflow_lab.paper.convergence.quadratic import quadratic_convergence


def problem(d, seed):
    values = torch.linspace(1, -1, d, dtype=torch.float64)
    X0 = haar(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values, Brockett(torch.diag(values), values), X0


def squared(field, X):
    return field(0.0, X).square().sum((-2, -1))


@pytest.mark.parametrize("d", [4, 5, 8])
def test_the_bound_holds_and_says_something(d):
    g = torch.Generator().manual_seed(0)
    result = quadratic_convergence(d, num_steps=400, num_runs=8, generator=g)
    assert result.squared_norms.mean() <= result.bound
    assert result.squared_norms.max() <= result.trivial_bound
    shorter = quadratic_convergence(
        d, num_steps=100, num_runs=2, generator=torch.Generator().manual_seed(0)
    )
    assert result.bound == pytest.approx(shorter.bound / 2)  # it falls as one over the square root


def test_the_constants_are_those_of_the_problem(generator):
    values, field, X0 = problem(6, 0)
    result = quadratic_convergence(
        6, num_steps=7, num_runs=1, generator=torch.Generator().manual_seed(0)
    )
    X = haar(6, batch=(500,), generator=generator, dtype=torch.float64)
    assert squared(field, X).max() <= result.trivial_bound
    assert field.value(X).max() <= values.square().sum() / 2
    assert_close("maximum", values.square().sum() / 2, field.value(torch.eye(6).double()))
    Y = haar(6, batch=(500,), generator=generator, dtype=torch.float64)
    moved = (field.gradient(X) - field.gradient(Y)).flatten(1).norm(dim=1)
    assert (moved <= (X - Y).flatten(1).norm(dim=1)).all()
    assert result.bound == pytest.approx(
        gradient_norm_bound(
            gap=(values.square().sum() / 2 - field.value(X0)).item(),
            second_moment=5 * result.trivial_bound,
            lipschitz=1.0,
            gradient_at_identity=field.gradient(torch.eye(6).double()).norm().item(),
            d=6,
            step_sizes=[result.eta] * 7,
        )
    )


def test_measured_norms_are_the_expectation_over_matchings():
    _, field, X0 = problem(4, 3)
    result = quadratic_convergence(
        4, num_steps=3, num_runs=20_000, generator=torch.Generator().manual_seed(3)
    )
    level = X0[None]
    for step in range(3):
        # Five standard errors: a false alarm in a million.
        allowed = 5 * result.standard_errors[step].item() + 1e-12
        assert abs(result.squared_norms[step].item() - squared(field, level).mean()) < allowed
        options = {"generator": torch.Generator()}
        level = torch.cat(
            [
                integrate(field, level, result.eta, 1, sampler=Play([r]), **options).last
                for r in range(3)
            ]
        )


@pytest.mark.bad_input
def test_bad_input_is_refused_with_a_reason(generator):
    with pytest.raises(BlockSizeError, match="at least d=2 rows"):
        quadratic_convergence(1, num_steps=1, num_runs=1, generator=generator)
    with pytest.raises(ValueError, match="`num_runs` must be a whole number"):
        quadratic_convergence(4, num_steps=1, num_runs=0, generator=generator)
