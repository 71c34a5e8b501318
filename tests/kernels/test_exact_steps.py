"""Exact steps: against scipy and the SVD, at any norm, and what they cost."""

from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import assert_close, randn, random_stiefel, scipy_expm, with_norm
from skewflow.geometry import omega, orthogonality_error, tangent_project
from skewflow.kernels.exact_exponential.cpu import direct_step, exponential_step_on_cpu
from skewflow.kernels.exact_polar import reference as polar
from skewflow.kernels.exact_step import exact_step
from skewflow.kernels.polish.reference import polish_

SHAPES = [(2, 1), (2, 2), (7, 3), (7, 4), (12, 12), (33, 17), (40, 6)]
NORMS = [0.0, 1e-3, 0.03, 0.3, 1.0, 4.0, 30.0, 300.0]


def direction(X, norm, generator):
    """A gradient whose generator has the given spectral norm."""
    D = randn(*X.shape, generator=generator)
    return D * (norm / torch.linalg.matrix_norm(omega(X, D), 2))[:, None, None]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_exponential_step_is_scipys_for_a_batch_of_any_norms(dtype, shape, generator):
    X = random_stiefel(*shape, batch=(len(NORMS),), generator=generator)
    D = direction(X, torch.tensor(NORMS, dtype=torch.float64), generator)
    Y = exact_step(X.to(dtype), D.to(dtype), 0.5, "exp")
    for X_b, D_b, Y_b, norm in zip(X, D, Y, NORMS, strict=True):
        # Each squaring doubles the error of the angles; float32 knows the gradient to 6e-8.
        factor = max(1.0, norm)
        assert_close("Y", scipy_expm(-0.5 * omega(X_b, D_b)) @ X_b, Y_b, dtype, factor=factor)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_polar_step_is_the_projection_for_a_batch_of_any_norms(dtype, shape, generator):
    X = random_stiefel(*shape, batch=(len(NORMS),), generator=generator)
    D = direction(X, torch.tensor(NORMS, dtype=torch.float64), generator)
    Y = exact_step(X.to(dtype), D.to(dtype), 0.5, "polar")
    expected = polar.polar_step(X, D, 0.5)
    for b, norm in enumerate(NORMS):
        # The smallest singular value of the tangent step is 1, its error that of the largest.
        factor = max(1.0, norm)
        assert_close("Y", expected[b], Y[b], dtype, factor=factor)
        alone = exact_step(X[b : b + 1].to(dtype), D[b : b + 1].to(dtype), 0.5, "polar")[0]
        assert_close("Y of one", expected[b], alone, dtype, factor=factor)


class Products(TorchDispatchMode):
    """Counts the multiplications of products."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"):
            A, B = args[:2] if name in ("mm", "bmm") else args[1:3]
            self.number += A.numel() * B.shape[-1]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "shape, retraction, norm, price",
    [
        ((64, 64), "exp", 0.01, 4),  # generator, square, terms 3 and 4, application
        ((64, 64), "exp", 0.15, 5),  # eight terms
        ((64, 64), "exp", 0.5, 8),  # once squared, and polished
        ((64, 64), "polar", 0.01, 4),  # tangent (2), Gram, correction
        ((64, 64), "polar", 0.15, 6),  # tangent (2), Gram, its square, the series, application
    ],
)
def test_a_step_costs_few_products(shape, retraction, norm, price, generator):
    X = random_stiefel(*shape, batch=(1,), generator=generator)
    D = direction(X, torch.tensor([norm]), generator)
    with Products() as products:
        exact_step(X.float(), D.float(), 1.0, retraction)
    assert products.number == price * 64**3


@pytest.mark.parametrize("n, retraction, thin", [(1, "exp", 5), (2, "exp", 7), (1, "polar", 4)])
def test_a_thin_step_costs_few_thin_products(n, retraction, thin, generator):
    d, k = 512, 8
    X = random_stiefel(d, k, batch=(n,), generator=generator)
    D = direction(X, torch.full((n,), 0.1), generator)
    with Products() as products:
        exact_step(X.float(), D.float(), 1.0, retraction)
    # Besides, a few products of matrices with k or 2k rows, which do not grow with d.
    assert thin * d * k**2 <= products.number / n <= thin * d * k**2 + 40 * k**3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_exponential_step_of_one_matrix_is_scipys_at_any_norm(dtype, shape, generator):
    for norm in NORMS:
        X = random_stiefel(*shape, generator=generator)
        D = direction(X[None], torch.tensor([norm], dtype=torch.float64), generator)[0]
        Y, T = exponential_step_on_cpu(X.to(dtype), D.to(dtype), 0.5, tangent=True)
        factor = max(1.0, norm)
        assert_close("Y", scipy_expm(-0.5 * omega(X, D)) @ X, Y, dtype, factor=factor)
        assert_close("T", tangent_project(X, D), T, dtype, factor=factor)
        M = D.to(dtype)
        exponential_step_on_cpu(X.to(dtype), M, 0.5, tangent=True, out=M)
        assert_close("in place", T, M, dtype, factor=factor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("d, k", [(12, 12), (12, 4)])
def test_one_matrix_is_left_to_the_batched_step_where_squares_leave_the_range(
    d, k, dtype, generator
):
    X = random_stiefel(d, k, generator=generator, dtype=dtype)
    D = randn(d, k, generator=generator, dtype=dtype)
    far = torch.finfo(dtype).max ** 0.45
    for scale in (far, 1 / far, 0.0):
        assert direct_step(X, D * scale, 0.1 / max(scale, 1e-3), tangent=False) is None
    assert direct_step(X, D, 0.01, tangent=False) is not None


@pytest.mark.parametrize("scale", [10.0, 1e20, float("nan")])
def test_a_thin_matrix_off_the_manifold_is_left_to_the_batched_step(scale, generator):
    # Its series would need as many terms as the matrix is long: for an infinite one they never end.
    X = random_stiefel(12, 4, generator=generator, dtype=torch.float32) * scale
    D = randn(12, 4, generator=generator, dtype=torch.float32)
    assert direct_step(X, D, 0.1, tangent=False) is None


@pytest.mark.parametrize("retraction", ["exp", "polar", "cayley"])
@pytest.mark.parametrize("k", [16, 4])
def test_the_error_of_a_point_does_not_grow_along_a_symmetric_gradient(retraction, k, generator):
    # D = X S with a large symmetric S is no direction at all; but taken for one, it lets the
    # smallest error of the point grow like exp(lr S).
    X = random_stiefel(16, k, batch=(1,), generator=generator, dtype=torch.float32)
    polish_(X)
    for _ in range(200):
        D = -30 * X + randn(1, 16, k, generator=generator, dtype=torch.float32)
        X = exact_step(X, D, 0.02, retraction)
    assert orthogonality_error(X) < 1e-5


def test_small_steps_need_no_polish(generator):
    X = random_stiefel(64, 64, batch=(1,), generator=generator, dtype=torch.float32)
    polish_(X)
    for _ in range(256):
        D = with_norm(randn(1, 64, 64, generator=generator, dtype=torch.float32), 0.1)
        X = exact_step(X, D, 1.0, "exp")
    assert orthogonality_error(X) / 8 < 4e-6  # what the guard leaves alone


@pytest.mark.parametrize("retraction", ["exp", "polar", "cayley"])
@pytest.mark.parametrize("d, k", [(64, 64), (64, 40), (64, 16), (512, 8)])
def test_gradients_of_low_rank_and_normal_ones_stay_on_the_manifold_at_any_length(
    d, k, retraction, generator
):
    # Their bases have no full rank, or consist of rounding.
    for dtype in (torch.float64, torch.float32):
        X = random_stiefel(d, k, batch=(1,), generator=generator, dtype=dtype)
        polish_(X)
        low = randn(1, d, 2, generator=generator, dtype=dtype)
        low = low @ randn(1, 2, k, generator=generator, dtype=dtype)
        for lr, D in product(
            (1e-6, 1e-2, 1.0, 1e3, 1e8, 1e30), (low, X, X @ low[:, :k], 100 * X + low)
        ):
            error = orthogonality_error(exact_step(X, D, lr, retraction))
            assert error / k**0.5 < (1e-6 if dtype == torch.float32 else 1e-13), lr


@pytest.mark.parametrize("retraction", ["exp", "polar", "cayley"])
@pytest.mark.parametrize("d, k", [(12, 12), (12, 4)])
def test_a_gradient_that_almost_vanishes_has_a_step_at_any_learning_rate(
    d, k, retraction, generator
):
    X = random_stiefel(d, k, batch=(1,), generator=generator, dtype=torch.float32)
    for size in (0.0, 1e-44, 1e-38):
        D = size * randn(1, d, k, generator=generator, dtype=torch.float32)
        assert orthogonality_error(exact_step(X, D, 1e300, retraction)) / k**0.5 < 1e-6


@pytest.mark.parametrize("d, k", [(12, 12), (12, 4), (5, 1)])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "dtype, size, lr",
    [
        (torch.float32, 1e-25, 1e38),  # squares of the size vanish
        (torch.float32, 1e-24, 1e18),
        (torch.float64, 1e-170, 1e300),
        (torch.float64, 1e-170, 1e150),
    ],
)
def test_a_polar_step_is_no_shorter_than_its_gradient(dtype, size, lr, n, d, k, generator):
    X = random_stiefel(d, k, batch=(n,), generator=generator, dtype=dtype)
    D = randn(n, d, k, generator=generator, dtype=dtype)
    Y = exact_step(X, D * size, lr, "polar")
    assert orthogonality_error(Y).max() / k**0.5 < (1e-6 if dtype == torch.float32 else 1e-13)
    expected = exact_step(X.double(), D.double(), min(lr * size, 1e3), "polar")
    assert torch.allclose(Y.double(), expected, atol=1e-4)
