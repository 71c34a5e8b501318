"""Assignments against enumeration and planted optima; every error with its message."""

import itertools

import numpy as np
import pytest
import scipy.optimize
import torch

from skewflow.errors import NonFiniteError, ShapeError
from skewflow.problems import quadratic_assignment
from skewflow.problems.assignment import cpu
from skewflow.problems.assignment.relaxation import orthostochastic_flow
from skewflow.problems.assignment.solve import assignment_cost, improve

FAST = {"restarts": 4, "steps": 60, "moves": 500}


def cost(A, B, p):
    return sum(A[i, j] * B[p[i], p[j]] for i in range(len(p)) for j in range(len(p)))


def instance(n, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(-4, 10, (n, n)), rng.integers(-4, 10, (n, n))


@pytest.mark.parametrize("maximize", [False, True])
def test_small_assignments_are_the_best(maximize):
    A, B = instance(7, seed=3)
    costs = [cost(A, B, p) for p in itertools.permutations(range(7))]
    result = quadratic_assignment(A, B, options={**FAST, "maximize": maximize})
    assert result.fun == cost(A, B, result.col_ind) == (max(costs) if maximize else min(costs))


def test_a_partial_match_is_kept_and_the_rest_is_the_best():
    A, B = instance(7, seed=4)
    fixed = [(0, 5), (3, 1)]
    allowed = (p for p in itertools.permutations(range(7)) if all(p[i] == j for i, j in fixed))
    result = quadratic_assignment(A, B, options={**FAST, "partial_match": fixed})
    assert all(result.col_ind[i] == j for i, j in fixed)
    assert result.fun == min(cost(A, B, p) for p in allowed)


def test_a_planted_permutation_is_found():
    rng = np.random.default_rng(0)
    A, hidden = rng.random((25, 25)), rng.permutation(25)
    B = np.empty((25, 25))
    B[np.ix_(hidden, hidden)] = -A  # by Cauchy and Schwarz no permutation costs less than -|A|^2
    result = quadratic_assignment(A, B, options=FAST)
    assert np.array_equal(result.col_ind, hidden)
    assert result.fun == pytest.approx(-(A**2).sum())


def test_everything_fixed_or_one_row_leaves_nothing_to_do():
    A, B = instance(3, seed=0)
    fixed = quadratic_assignment(A, B, options={"partial_match": [(0, 2), (1, 0), (2, 1)]})
    assert fixed.col_ind.tolist() == [2, 0, 1] and fixed.fun == cost(A, B, [2, 0, 1])
    one = quadratic_assignment([[3.0]], torch.tensor([[2.0]]))
    assert one.col_ind.tolist() == [0] and one.fun == 6


def test_the_same_seed_gives_the_same_permutation():
    A, B = instance(15, seed=5)
    first, second = (quadratic_assignment(A, B, options={**FAST, "rng": 7}) for _ in range(2))
    assert np.array_equal(first.col_ind, second.col_ind)


def test_the_gain_of_an_exchange_is_the_difference_of_two_costs():
    A, B = (M.astype(float) for M in instance(8, seed=6))
    rng = np.random.default_rng(0)
    L, p = rng.integers(-5, 6, (8, 8)).astype(float), rng.permutation(8)
    P = B[np.ix_(p, p)]
    for u, v in itertools.combinations(range(8), 2):
        q = p.copy()
        q[[u, v]] = p[[v, u]]
        linear = L[np.arange(8), q].sum() - L[np.arange(8), p].sum()
        gain = cpu.change.py_func(A, A.T, P, P.T, L, p, u, v)
        assert gain == cost(A, B, q) - cost(A, B, p) + linear


def test_gains_after_an_exchange_are_those_computed_anew():
    A, B = (M.astype(float) for M in instance(9, seed=8))
    L, p = np.arange(81.0).reshape(9, 9) % 7, np.random.default_rng(1).permutation(9)

    def gains():
        P = B[np.ix_(p, p)]
        delta = np.zeros((9, 9))
        for u, v in itertools.combinations(range(9), 2):
            delta[u, v] = cpu.change.py_func(A, A.T, P, P.T, L, p, u, v)
        return delta

    delta = gains()
    p[[2, 6]] = p[[6, 2]]
    P = B[np.ix_(p, p)]
    scratch = np.empty((4, 9))
    cpu.update_changes.py_func(delta, A, A.T, P, P.T, L, p, 2, 6, scratch)
    assert np.array_equal(np.triu(delta, 1), gains())


def test_descent_ends_where_no_exchange_helps():
    A, B = (M.astype(float) for M in instance(12, seed=9))
    Z = np.zeros((12, 12))
    start = np.random.default_rng(2).permutation(12)
    p = improve(A, B, Z, [start], 0, 0)
    assert assignment_cost(A, B, p) < assignment_cost(A, B, start)
    for u, v in itertools.combinations(range(12), 2):
        q = p.copy()
        q[[u, v]] = p[[v, u]]
        assert cost(A, B, q) >= cost(A, B, p)


def test_the_flow_ends_at_doubly_stochastic_matrices_near_permutations():
    A, B = (torch.from_numpy(M).double() for M in instance(10, seed=10))
    P = orthostochastic_flow(A, B, torch.zeros_like(A), restarts=5, steps=200, seed=0)
    one = torch.ones(5, 10, dtype=P.dtype)
    for sums in (P.sum(-1), P.sum(-2)):
        assert torch.allclose(sums, one, atol=1e-5)
    assert (P.amax(-1) > 0.9).double().mean() > 0.8


@pytest.mark.parametrize(
    "A, B, options, error, words",
    [
        (np.ones((2, 3)), np.eye(3), {}, ShapeError, r"`A` must be a square matrix: got shape"),
        (np.eye(3), np.ones(3), {}, ShapeError, r"`B` must be a square matrix"),
        (np.eye(3), np.eye(4), {}, ShapeError, "same size: got 3 and 4 rows"),
        (np.eye(3) * np.nan, np.eye(3), {}, NonFiniteError, "9 of its entries are NaN"),
        (np.eye(3), np.eye(3) * 1j, {}, ValueError, "`B` must be real"),
        (np.eye(3) * 1e300, np.eye(3), {}, ValueError, r"`A` must have .*: got 1e\+300"),
        (np.eye(3), np.eye(3), {"restarts": 0}, ValueError, "at least 1: got 0"),
        (np.eye(3), np.eye(3), {"moves": 1.5}, ValueError, "at least 0: got 1.5"),
        (np.eye(3), np.eye(3), {"partial_match": [1, 2, 0]}, ShapeError, r"shape \(m, 2\)"),
        (np.eye(3), np.eye(3), {"partial_match": [(0.5, 1)]}, ShapeError, "pairs of whole"),
        (np.eye(3), np.eye(3), {"partial_match": [(0, 3)]}, ValueError, "rows in 0..2"),
        (np.eye(3), np.eye(3), {"partial_match": [(0, 1), (2, 1)]}, ValueError, "of `B` occurs"),
    ],
)
def test_bad_input_is_refused(A, B, options, error, words):
    with pytest.raises(error, match=words):
        quadratic_assignment(A, B, options=options)


def test_other_methods_are_scipy_s():
    with pytest.raises(ValueError, match="scipy.optimize.quadratic_assignment has the others"):
        quadratic_assignment(np.eye(2), np.eye(2), "faq")


def test_unknown_options_warn_as_in_scipy_and_its_forms_of_options_are_taken():
    A, B = instance(6, seed=11)
    plain = quadratic_assignment(A, B, options=FAST)
    theirs = scipy.optimize.quadratic_assignment
    for solve, options in (
        (quadratic_assignment, FAST),
        (theirs, {"rng": np.random.default_rng(0)}),
    ):
        with pytest.warns(scipy.optimize.OptimizeWarning, match="Unknown solver options: foo"):
            solve(A, B, options={**options, "foo": 1})
    assert quadratic_assignment(A, B, "FLOW", FAST).fun == plain.fun
    for pair in ([(2, 3)], [2, 3], np.array([[2.0, 3.0]]), torch.tensor([[2, 3]])):
        assert quadratic_assignment(A, B, options={**FAST, "partial_match": pair}).col_ind[2] == 3
    for rng in (None, np.random.default_rng(0), np.random.RandomState(0)):
        assert quadratic_assignment(A, B, options={**FAST, "rng": rng}).fun >= plain.fun


def test_costs_of_any_unit_are_taken():
    A, B = instance(6, seed=12)
    plain = quadratic_assignment(A, B, options=FAST)
    for scale in (1e-90, 1e90):
        other = quadratic_assignment(scale * A, scale * B, options=FAST)
        assert other.fun == pytest.approx(scale**2 * plain.fun)
