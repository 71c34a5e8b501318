import numpy as np
import pytest
import torch

from helpers import (
    STIEFEL_SHAPES,
    assert_close,
    matrix_rank,
    randn,
    random_skew,
    random_stiefel,
    scipy_expm,
)
from skewflow.geometry import basis, omega, skew


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_omega_holds_the_differences_of_row_products(d, k, generator):
    X = random_stiefel(d, k, generator=generator)
    G = randn(d, k, generator=generator)
    x, g = X.numpy(), G.numpy()
    expected = [[g[i] @ x[j] - x[i] @ g[j] for j in range(d)] for i in range(d)]
    assert_close("omega", np.array(expected), omega(X, G))


@pytest.mark.parametrize("side", ["left", "right"])
def test_omega_is_skew_to_the_last_bit(side, generator):
    X, G = random_stiefel(9, generator=generator), randn(9, 9, generator=generator)
    W = omega(X, G, side)
    assert torch.equal(W, -W.mT)


def test_a_gradient_normal_to_the_manifold_gives_no_generator(generator):
    X, S = random_stiefel(7, 3, generator=generator), randn(3, 3, generator=generator)
    assert_close("omega", torch.zeros(7, 7), omega(X, X @ (S + S.mT)))


@pytest.mark.parametrize("d", [1, 2, 5, 16])
def test_left_generator_is_the_reverse_generator_seen_through_x(d, generator):
    X, G = random_stiefel(d, generator=generator), randn(d, d, generator=generator)
    assert_close("omega", X @ omega(X, G, side="right") @ X.mT, omega(X, G))


@pytest.mark.parametrize("eta", [-0.3, 0.1, 2.0])
def test_reverse_step_equals_left_step_on_square_matrices(eta, generator):
    X, G = random_stiefel(6, generator=generator), randn(6, 6, generator=generator)
    left = scipy_expm(eta * omega(X, G)) @ X
    right = X @ scipy_expm(eta * omega(X, G, side="right"))
    assert_close("step", left, right)


def test_reverse_step_never_leaves_the_span_of_x_when_k_is_less_than_d(generator):
    X, G = random_stiefel(7, 3, generator=generator), randn(7, 3, generator=generator)
    outside = torch.eye(7, dtype=X.dtype) - X @ X.mT
    reverse = X @ scipy_expm(X.mT @ G - G.mT @ X)  # by hand: `omega` refuses it
    assert_close("reverse step outside the span", torch.zeros(7, 3), outside @ reverse)
    assert torch.linalg.norm(outside @ scipy_expm(omega(X, G)) @ X) > 0.1


def test_one_plane_moves_two_rows_on_the_left_and_two_columns_in_reverse(generator):
    X, G = random_stiefel(5, generator=generator), randn(5, 5, generator=generator)
    plane = basis(5, 1, 3, dtype=X.dtype).abs()
    left = scipy_expm(plane * omega(X, G)) @ X - X
    right = X @ scipy_expm(plane * omega(X, G, side="right")) - X
    assert left.abs().amax(1).gt(1e-9).tolist() == [False, True, False, True, False]
    assert right.abs().amax(0).gt(1e-9).tolist() == [False, True, False, True, False]
    assert torch.linalg.norm(left - right) > 0.1


@pytest.mark.parametrize("d", [2, 3, 6])
def test_basis_matrices_span_the_skew_matrices(d, generator):
    H = [basis(d, i, j, dtype=torch.float64) for i in range(d) for j in range(i + 1, d)]
    assert matrix_rank(H) == len(H) == d * (d - 1) // 2
    A = random_skew(d, generator=generator)
    upper = A[tuple(torch.triu_indices(d, d, 1))]
    assert_close("A", A, sum(a * h for a, h in zip(upper, H, strict=True)))


def test_basis_matrix_is_plus_one_above_and_minus_one_below_the_diagonal():
    expected = torch.zeros(4, 4)
    expected[1, 3], expected[3, 1] = 1.0, -1.0
    assert torch.equal(basis(4, 1, 3), expected)
    assert torch.equal(basis(4, 3, 1), -expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_basis_has_the_dtype_asked_for(dtype):
    assert basis(3, 0, 1, dtype=dtype).dtype == dtype


def test_skew_part_is_the_nearest_skew_matrix(generator):
    A = randn(5, 5, generator=generator)
    H = [basis(5, i, j, dtype=A.dtype) for i in range(5) for j in range(i + 1, 5)]
    directions = torch.stack([h.ravel() for h in H], dim=1).numpy()
    coordinates = np.linalg.lstsq(directions, A.numpy().ravel(), rcond=None)[0]
    assert_close("skew", (directions @ coordinates).reshape(5, 5), skew(A))


def test_skew_part_of_a_skew_matrix_is_itself(generator):
    A = random_skew(6, generator=generator)
    assert torch.equal(skew(A), A)
