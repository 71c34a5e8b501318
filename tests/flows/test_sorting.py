"""The sorting flow: it sorts, the printed one does the opposite, and the scores are right."""

from itertools import permutations

import pytest
import torch

from helpers import assert_close, randn, random_stiefel
from skewflow.errors import NonFiniteError, ShapeError
from skewflow.flows import (
    Field,
    integrate,
    inverse_fraction,
    largest_stable_step,
    nearest_permutation,
    sortedness,
    sorting_field,
)
from skewflow.geometry import givens
from skewflow.samplers import RoundRobin


@pytest.fixture
def q(generator):
    """Three shuffled sequences whose numbers are half apart, so that no plane is slow."""
    orders = torch.rand(3, 5, generator=generator).argsort(-1)
    return orders.to(torch.float64) / 2


@pytest.fixture
def start(generator):
    return random_stiefel(5, generator=generator, batch=(3,))


def test_the_field_is_the_commutator_with_the_corrected_sign(q, start):
    N = torch.diag(torch.arange(5.0, 0.0, -1.0, dtype=torch.float64))
    H = start.mT @ torch.diag_embed(q) @ start
    assert_close("omega", H @ N - N @ H, sorting_field(q)(0.0, start))


@pytest.mark.many_calls
@pytest.mark.parametrize("sampler, eta", [(None, 0.1), (RoundRobin(), 0.03)])
def test_the_flow_sorts_in_decreasing_order(sampler, eta, q, start, generator):
    X = integrate(sorting_field(q), start, eta, 1500, sampler=sampler, generator=generator).last
    assert sortedness(X, q).tolist() == [1.0, 1.0, 1.0]
    assert_close("P^T q", q.sort(descending=True).values, (X.square().mT @ q[..., None])[..., 0])


def test_the_flow_as_printed_sorts_the_wrong_way_round(q, start):
    field = sorting_field(q)
    X = integrate(Field(lambda t, X: -field(t, X), "right"), start, 0.1, 500).last
    assert sortedness(X, q).tolist() == [0.0, 0.0, 0.0]


def test_another_n_gives_another_order(q, start):
    X = integrate(sorting_field(q, torch.arange(5.0)), start, 0.1, 500).last
    assert sortedness(X, q).tolist() == [0.0, 0.0, 0.0]


def test_the_nearest_permutation_is_the_best_of_all(generator):
    X = randn(2, 4, 4, generator=generator)
    for A, found in zip(X, nearest_permutation(X), strict=True):
        score = lambda rows, A=A: sum(A[i, j].item() ** 2 for j, i in enumerate(rows))  # noqa: E731
        assert score(found.tolist()) == max(score(rows) for rows in permutations(range(4)))


def test_inverse_pairs_are_counted():
    assert inverse_fraction(torch.tensor([[4.0, 3, 2, 1], [1, 2, 3, 4]])).tolist() == [1.0, 0.0]
    assert inverse_fraction(torch.tensor([2.0, 1, 4, 3])).item() == pytest.approx(2 / 6)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_the_sorted_point_repels_above_the_stable_step(scale):
    q = torch.tensor([3.0, 2.5, 1.0, 0.5, -1.0], dtype=torch.float64)
    angle = 1e-4
    X = givens(5, 0, 4, angle, dtype=torch.float64)  # off the sorted point in the fastest plane
    for factor in (0.5, 0.99, 1.01, 1.5):
        eta = factor * largest_stable_step(q, scale=scale).item()
        omega = sorting_field(q)(0.0, X)
        after = abs(angle + scale * eta * omega[0, 4].item())
        assert (after < angle) == (factor < 1)


@pytest.mark.bad_input
def test_bad_input_is_refused_with_a_reason():
    with pytest.raises(ShapeError, match="`q` must hold at least two numbers"):
        sorting_field(torch.ones(1))
    with pytest.raises(ShapeError, match="`n` must hold one number for each of the d=3"):
        sorting_field(torch.ones(3), torch.ones(2))
    with pytest.raises(NonFiniteError, match="`X` must be finite"):
        nearest_permutation(torch.full((2, 2), torch.nan))
