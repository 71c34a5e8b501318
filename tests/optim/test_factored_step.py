"""The exact step for a gradient of low rank: against the exponential of the assembled generator."""

import pytest
import torch

from helpers import assert_close, randn, random_stiefel, scipy_expm
from skewflow.geometry import omega, orthogonality_error
from skewflow.kernels.polish.reference import polish_
from skewflow.kernels.rotate_factored.cpu import rotate_factored_
from skewflow.kernels.rotate_factored.dispatch import FactoredStep

factored_step_ = FactoredStep()

SHAPES = [(40, 40, 5), (60, 20, 7), (33, 33, 1), (20, 7, 12), (9, 9, 30), (2, 1, 1), (3, 3, 2)]
"""(d, k, r): square, thin, of rank one, of rank above k, tiny."""


def factors(d, k, r, generator, batch=1):
    """Factors of a gradient of spectral norm about 1."""
    A = randn(batch, d, r, generator=generator) / d**0.5
    B = randn(batch, k, r, generator=generator) / r**0.5
    return A, B


def expected(X, A, B, lr):
    return torch.stack(
        [scipy_expm(-lr * omega(x, a @ b.mT)) @ x for x, a, b in zip(X, A, B, strict=True)]
    )


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("d, k, r", SHAPES)
def test_a_step_is_the_exponential_of_the_generator(d, k, r, n, generator):
    X = random_stiefel(d, k, batch=(n,), generator=generator)
    A, B = factors(d, k, r, generator, n)
    for lr in (0.0, 1e-6, 0.01, 0.3, 3.0):
        Y = X.clone()
        assert factored_step_(Y, A, B, lr).all()
        # Doublings multiply the rounding error of scipy and of the step alike.
        assert_close(f"Y, lr={lr}", expected(X, A, B, lr), Y, factor=max(1.0, 3 * lr))


def test_a_product_that_is_known_changes_nothing(generator):
    X = random_stiefel(12, 5, batch=(1,), generator=generator)
    A, B = factors(12, 5, 3, generator)
    Y, Z = X.clone(), X.clone()
    factored_step_(Y, A, B, 0.3)
    factored_step_(Z, A, B, 0.3, X @ B)
    assert_close("Y", Y, Z)


@pytest.mark.parametrize("known", ["", "V", "V, AX"])
@pytest.mark.parametrize("wide", [False, True])
def test_one_matrix_takes_the_step_of_a_batch(wide, known, generator):
    X = random_stiefel(60, 20, batch=(1,), generator=generator)
    X = X.mT.contiguous().mT if wide else X
    A, B = factors(60, 20, 7, generator)
    V, AX = (X @ B if "V" in known else None), (A.mT @ X if "AX" in known else None)
    both = [None if F is None else torch.cat([F, F]) for F in (A, B, V, AX)]
    Y, Z = X.clone(), torch.cat([X, X])
    factored_step_(Y, A, B, 0.3, V, AX)
    factored_step_(Z, both[0], both[1], 0.3, both[2], both[3])
    assert_close("Y", Z[:1], Y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_matrix_is_left_to_the_reference_where_squares_leave_the_range(dtype, generator):
    X = random_stiefel(30, 10, generator=generator, dtype=dtype)
    A, B = (F[0].to(dtype) for F in factors(30, 10, 4, generator))
    Y, far = X.clone(), torch.finfo(dtype).max ** 0.6
    for a, b, eta in ((far, 1 / far, 0.1), (1 / far, far, 0.1), (1.0, 1.0, 100.0)):
        assert not rotate_factored_(Y, A * a, B * b, eta)
        assert torch.equal(Y, X)
    assert rotate_factored_(Y, A, B, 0.1)


def test_what_is_left_of_a_column_after_its_common_part_is_not_lost(generator):
    X = random_stiefel(16, 8, generator=generator, dtype=torch.float32)
    B = torch.zeros(8, 1)
    B[0] = 1.5e-15  # its square is in the range, and a fifth of it is not
    A = (X[:, :1] + 0.5 * X[:, 1:2]) * 0.8e15
    Y = X[None].clone()
    factored_step_(Y, A[None], B[None], 1.0)
    exact = expected(X[None].double(), A[None].double(), B[None].double(), 1.0)
    assert (Y - X).norm() > 0.5 and (Y - exact).abs().max() < 1e-5


@pytest.mark.parametrize("n", [1, 2])
def test_zero_columns_and_zero_factors(n, generator):
    X = random_stiefel(12, 5, batch=(n,), generator=generator)
    A, B = factors(12, 5, 4, generator, n)
    A[:, :, 1] = 0
    B[:, :, 2] = 0
    A[1:] = 0
    Y = X.clone()
    factored_step_(Y, A, B, 0.5)
    assert_close("Y", expected(X, A, B, 0.5), Y)
    assert torch.equal(Y[1:], X[1:])


def test_badly_scaled_factors(generator):
    X = random_stiefel(30, 20, batch=(1,), generator=generator)
    A, B = factors(30, 20, 6, generator)
    scale = 10.0 ** torch.arange(-30, 30, 10, dtype=torch.float64)
    Y = X.clone()
    factored_step_(Y, A * scale, B / scale, 0.5)
    assert_close("Y", expected(X, A, B, 0.5), Y)


def test_a_large_symmetric_part_of_the_gradient_costs_few_digits(generator):
    # Near a minimum of online PCA U is almost V: the generator is small, its factors are not.
    X = random_stiefel(30, 10, batch=(1,), generator=generator)
    B = randn(1, 10, 8, generator=generator)
    A = X @ B + 1e-3 * randn(1, 30, 8, generator=generator)
    Y = X.clone()
    factored_step_(Y, A, B, 0.3)
    # Rounding is relative to the length of the factors, about 30 here.
    assert_close("Y", expected(X, A, B, 0.3), Y, factor=30)


@pytest.mark.parametrize("n", [1, 2])
def test_a_rate_may_be_above_the_largest_number_of_the_dtype(n, generator):
    X = random_stiefel(20, 20, batch=(n,), generator=generator)
    A, B = (F * 1e-20 for F in factors(20, 20, 1, generator, n))
    Y = X.float()
    factored_step_(Y, A.float(), B.float(), 1e39)  # by an angle of about 0.1
    assert_close("Y", expected(X, A, B, 1e39), Y.double(), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("d, k, r", [(64, 64, 8), (64, 16, 4), (30, 7, 20)])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("normal", [False, True], ids=["any", "stationary"])
def test_any_length_stays_on_the_manifold(d, k, r, dtype, n, normal, generator):
    X = random_stiefel(d, k, batch=(n,), generator=generator, dtype=dtype)
    polish_(X)
    A, B = (F.to(dtype) for F in factors(d, k, r, generator, n))
    if normal:  # there is nothing to do, and much to round
        A = X @ B
    A[-1] *= 1e3
    for lr in (1e-6, 1e-2, 1.0, 30.0, 1e3, 1e8, 1e30):
        Y = X.clone()
        factored_step_(Y, A, B, lr)
        # Beyond a length of 4 the step is that of the gradient.
        error = orthogonality_error(Y).max() / k**0.5
        assert error < (3e-6 if dtype == torch.float32 else 3e-14), lr


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_error_of_a_point_does_not_grow_along_a_symmetric_gradient(sign, generator):
    X = random_stiefel(40, 10, batch=(1,), generator=generator, dtype=torch.float32)
    polish_(X)
    for _ in range(300):
        B = randn(1, 10, 3, generator=generator, dtype=torch.float32)
        factored_step_(X, sign * X @ B, B, 0.02)
    assert orthogonality_error(X) < 1e-5
