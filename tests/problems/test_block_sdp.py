"""The solver against eigenvalues, known optima and an interior bound; its loops against numpy."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from helpers import assert_close
from skewflow.errors import NonFiniteError, ShapeError
from skewflow.problems import solve_block_sdp
from skewflow.problems.block_sdp import cpu, reference
from skewflow.problems.block_sdp.cost import SparseCost, block_diagonal
from skewflow.problems.block_sdp.factor import _sparse, factorise


def symmetric(size, seed=0):
    A = np.random.default_rng(seed).standard_normal((size, size))
    return A + A.T


def dual_matrix(solution, C):
    return C - block_diagonal(solution.multipliers).toarray()


@pytest.mark.parametrize("n, p, r", [(7, 1, 3), (6, 2, 2), (6, 2, 4), (5, 3, 3), (4, 3, 7)])
def test_loops_compute_what_the_reference_does(n, p, r):
    draw = np.random.default_rng(n + r)
    C = symmetric(n * p)
    C[np.abs(C) < 0.4] = 0
    S = sp.csr_array(C)
    Y = reference.polar(draw.standard_normal((n, p, r)))
    for omega in (1.0, 1.5, 1.95):
        expected, decrease = reference.sweep(C, Y, omega)
        actual = Y.copy()
        fell = cpu.sweep(S.indptr, S.indices, S.data, actual, omega)
        # The Jacobi rotations stop at 1e-15 and a sweep passes errors on: factor 100.
        assert_close("sweep", expected, actual, factor=100)
        assert_close("decrease", decrease, fell, factor=100)
    V = draw.standard_normal((n, p, r))
    tangent, nearest, S = V.copy(), V.copy(), np.empty((n, p, p))
    cpu.to_tangent(tangent, Y)
    cpu.retract(nearest)
    cpu.multipliers(V, Y, S)
    assert_close("tangent", reference.to_tangent(V, Y), tangent)
    assert_close("retract", reference.polar(V), nearest, factor=10)  # condition of the blocks
    assert_close("multipliers", reference.multipliers(V, Y), S)
    added = V.copy()
    cpu.add_blocks(S, V, added)
    assert_close("add_blocks", V + S @ V, added)


@pytest.mark.parametrize("n, p", [(20, 1), (8, 2), (6, 3)])
def test_solution_is_certified_by_dense_eigenvalues(n, p):
    C = symmetric(n * p, seed=p)
    solution = solve_block_sdp(C, p)
    Y = solution.factor
    assert solution.certified
    assert_close("feasible", np.broadcast_to(np.eye(p), (n, p, p)), Y @ Y.mT)
    flat = Y.reshape(n * p, -1)
    assert_close("value", (C * (flat @ flat.T)).sum(), solution.value, factor=10)  # a sum of n p
    least = np.linalg.eigvalsh(dual_matrix(solution, C))[0]
    dual = np.trace(solution.multipliers, axis1=1, axis2=2).sum() + n * p * min(least, 0)
    assert solution.bound <= dual + 1e-9
    assert solution.value - dual <= 1e-6 * abs(solution.value)


def test_bound_holds_far_from_the_optimum():
    C = symmetric(30)
    best = solve_block_sdp(C).value
    rough = solve_block_sdp(C, max_sweeps=0, max_steps=1)
    assert not rough.certified
    assert rough.bound <= best <= rough.value


@pytest.mark.parametrize("p, rank", [(1, 1), (1, 2), (2, 2)])
def test_staircase_climbs_from_the_smallest_rank(p, rank):
    C = symmetric(24, seed=5)
    low = solve_block_sdp(C, p, rank=rank, seed=1)
    assert low.certified
    assert low.rank > rank
    assert_close("value", solve_block_sdp(C, p).value, low.value, factor=1e7)  # the gap is 1e-6


def test_trust_region_reaches_the_optimum_without_sweeps():
    C = symmetric(24, seed=2)
    assert solve_block_sdp(C, 2, max_sweeps=0).certified


def test_a_rank_one_optimum_is_found():
    x = np.sign(np.random.default_rng(3).standard_normal(40))
    solution = solve_block_sdp(sp.csr_array(-np.outer(x, x)))
    assert_close("value", -1600.0, solution.value, factor=10)  # rounding of a sum of 1600 terms
    assert solution.certified


@pytest.mark.parametrize("m, density", [(300, 0.002), (60, 0.9)], ids=["sparse", "dense"])
def test_factor_proves_definiteness_exactly_where_it_holds(m, density):
    A = sp.random(m, m, density=density, rng=np.random.default_rng(0), format="csr")
    A = A + A.T
    least = np.linalg.eigvalsh(A.toarray())[0]
    eye = sp.eye(m, format="csr")
    assert factorise((A - (least + 1e-9) * eye).tocsr()) is None
    factor = factorise((A - (least - 1e-9) * eye).tocsr())
    assert 0 < factor.excess.max() < 1e-9
    B = np.random.default_rng(1).standard_normal((m, 2))
    shifted = A - (least - 1.0) * eye
    assert_close("solve", B, shifted @ factorise(shifted.tocsr()).solve(B))


def test_both_excesses_prove_definiteness_in_rational_arithmetic():
    draw = np.random.default_rng(0)
    for _ in range(5):
        B = draw.standard_normal((9, 8))  # a singular matrix but for rounding
        A = B @ B.T
        A = (A + A.T) / 2 + 1e-15 * np.eye(9)
        factor = _sparse(sp.csc_array(A), 1 / np.sqrt(A.diagonal()))
        if factor is None:
            continue
        tight = factor.tight()
        assert (tight < factor.excess).all()
        for excess in (tight, factor.excess):
            exact = [[Fraction(x) for x in row] for row in A]
            for i in range(9):
                exact[i][i] += Fraction(excess[i])
            assert all(pivot >= 0 for pivot in pivots(exact))


def pivots(A):
    """Of Gauss' elimination without rounding."""
    for k in range(len(A)):
        yield A[k][k]
        for i in range(k + 1, len(A)):
            quotient = A[i][k] / A[k][k]
            A[i] = [x - quotient * y for x, y in zip(A[i], A[k], strict=True)]


@pytest.mark.parametrize("scale", [1e-98, 1e98])
def test_the_solution_does_not_depend_on_the_unit_of_the_cost(scale):
    C = symmetric(12)
    for p in (1, 2):
        value = solve_block_sdp(C, p).value
        other = solve_block_sdp(scale * C, p)
        assert other.certified
        assert other.value == pytest.approx(scale * value, rel=1e-6)


def test_a_start_may_be_of_float32_and_of_torch():
    C = symmetric(6)
    Y = torch.nn.functional.normalize(torch.ones(6, 1, 2), dim=-1)
    solution = solve_block_sdp(C, initial=Y, max_sweeps=0, max_steps=0)
    assert_close("norm", np.ones((6, 1)), np.linalg.norm(solution.factor, axis=2))


def test_bound_of_any_shift_lies_below_the_optimum():
    C = symmetric(20)
    best = solve_block_sdp(C).value
    cost = SparseCost(sp.csr_array(C), 1)
    for shift in (20.0, 50.0):
        assert cost.shifted(np.full((20, 1, 1), shift)).bound <= best
    assert cost.shifted(np.zeros((20, 1, 1))) is None


def test_same_seed_gives_the_same_bits():
    C = symmetric(16)
    first, second = solve_block_sdp(C, seed=4), solve_block_sdp(C, seed=4)
    assert np.array_equal(first.factor, second.factor)
    assert first.bound == second.bound


@pytest.mark.bad_input
def test_bad_input_is_refused():
    C = symmetric(6)
    with pytest.raises(ShapeError, match=r"square matrix: got shape \(6, 5\)"):
        solve_block_sdp(C[:, :5])
    with pytest.raises(ShapeError, match="got p=4 for 6 rows"):
        solve_block_sdp(C, 4)
    with pytest.raises(ShapeError, match="got rank=1 and p=2"):
        solve_block_sdp(C, 2, rank=1)
    with pytest.raises(ShapeError, match=r"shape \(6, 1, r\)"):
        solve_block_sdp(C, initial=np.ones((5, 1, 2)))
    with pytest.raises(ValueError, match="orthonormal rows"):
        solve_block_sdp(C, initial=np.ones((6, 1, 2)))
    with pytest.raises(ValueError, match="`tol` must be a positive number: got 0"):
        solve_block_sdp(C, tol=0)
    with pytest.raises(ValueError, match="`max_steps` must be a whole number"):
        solve_block_sdp(C, max_steps=1.5)
    with pytest.raises(ValueError, match="`seed` must be a whole number of at least 0: got -1"):
        solve_block_sdp(C, seed=-1)
    asymmetric = C.copy()
    asymmetric[1, 2] += 1
    with pytest.raises(ValueError, match="must be symmetric"):
        solve_block_sdp(asymmetric)
    C[0, 3] = np.nan
    with pytest.raises(NonFiniteError, match="1 of its entries"):
        solve_block_sdp(C)
