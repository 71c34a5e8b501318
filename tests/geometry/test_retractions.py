import math

import numpy as np
import pytest
import torch

from helpers import (
    assert_close,
    fitted_slope,
    randn,
    random_skew,
    random_stiefel,
    scipy_expm,
    with_norm,
)
from skewflow.errors import NonFiniteError, NotOnManifoldError
from skewflow.geometry import basis, cayley, expm, omega, orthogonality_error, taylor

RETRACTIONS = {
    "expm": expm,
    "cayley": cayley,
    "taylor": lambda A: taylor(A, terms=8),
}


def printed_cayley(A):
    """Y(A) = (I + A/2)^-1 (I - A/2) as the paper prints it (Sec. 2.1.1), by numpy."""
    I, a = np.eye(A.shape[-1]), A.numpy()
    return torch.from_numpy(np.linalg.solve(I + a / 2, I - a / 2))


@pytest.fixture
def ascent(generator):
    """A point, its generator and the objective F(X) = tr(X^T M X N) that the generator raises."""
    X, M = random_stiefel(6, 4, generator=generator), randn(6, 6, generator=generator)
    M, N = M + M.mT, torch.arange(4.0, 0.0, -1.0, dtype=X.dtype).diag()

    def objective(X):
        return torch.trace(X.mT @ M @ X @ N).item()

    return X, omega(X, 2 * M @ X @ N), objective


@pytest.mark.parametrize("norm", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("d", [1, 2, 7, 32])
def test_expm_equals_scipys(d, norm, generator):
    A = random_skew(d, generator=generator)
    A = with_norm(A, norm) if d > 1 else A
    # Squaring doubles the error log2(norm) times, in scipy as in torch: a factor of the norm.
    assert_close("expm", scipy_expm(A), expm(A), factor=max(1.0, norm))


def test_expm_is_defined_for_matrices_that_are_not_skew(generator):
    A = randn(6, 6, generator=generator)
    # The result has entries of size exp(norm); the tolerance is relative to the largest.
    assert_close("expm", scipy_expm(A), expm(A))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("norm", [1.0, 1e2, 1e4, 1e6])
def test_expm_loses_orthogonality_no_faster_than_the_norm_grows(norm, dtype, generator):
    A = with_norm(random_skew(16, generator=generator), norm).to(dtype)
    # The constant is about 30 for 16 x 16 matrices of norm 1 and 5 for large ones.
    assert orthogonality_error(expm(A)) <= 100 * torch.finfo(dtype).eps * norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("norm", [1.0, 1e2, 1e4, 1e6])
def test_cayley_is_orthogonal_at_every_norm(norm, dtype, generator):
    A = with_norm(random_skew(16, generator=generator), norm).to(dtype)
    # One solve whose condition number is at most the ratio of the largest rotation speed to
    # the smallest, about 50 here whatever the norm.
    assert orthogonality_error(cayley(A)) <= 1000 * torch.finfo(dtype).eps


MAGNITUDES = 10.0 ** torch.tensor([-300.0, -8, 0, 2, 3, 4, 8, 12, 16, 20, 100, 200, 300]).double()


@pytest.mark.parametrize("d", [2, 3, 6, 7, 33])
def test_cayley_is_orthogonal_at_every_finite_magnitude(d, generator):
    """Also where A is singular: d is odd, or A turns one plane only."""
    plane = torch.zeros(d, d, dtype=torch.float64)
    plane[0, 1], plane[1, 0] = 1.0, -1.0
    for unit in (with_norm(random_skew(d, generator=generator), 1.0), plane):
        A = MAGNITUDES[:, None, None] * unit
        for R in (cayley(A), torch.stack([cayley(a) for a in A])):
            assert (orthogonality_error(R) / d**0.5).max() < 1e-13
            assert (torch.linalg.det(R) > 0).all()


def test_cayley_turns_every_plane_by_its_own_angle_at_large_norms():
    speeds = torch.tensor([1e6, 1.0, 3e3], dtype=torch.float64)
    A = torch.block_diag(*(v * basis(2, 0, 1, dtype=torch.float64) for v in speeds))
    angles = 2 * torch.atan(speeds / 2)
    expected = torch.block_diag(*expm(angles[:, None, None] * basis(2, 0, 1, dtype=A.dtype)))
    # A plane's angle is known to eps times the largest speed.
    assert_close("R", expected, cayley(A), factor=1e3)


@pytest.mark.parametrize("d", [4, 5])
def test_the_gradient_of_cayley_at_large_norms_is_that_of_the_solve(d, generator):
    A = with_norm(random_skew(d, generator=generator), 1e4).requires_grad_()
    I, weights = torch.eye(d, dtype=A.dtype), randn(d, d, generator=generator)
    solved = torch.linalg.solve(I - A / 2, I + A / 2)
    (expected,) = torch.autograd.grad((weights * solved).sum(), A)
    (found,) = torch.autograd.grad((weights * cayley(A)).sum(), A)
    # The solve itself loses eps times the norm.
    assert_close("gradient", expected, found, factor=10)


def test_cayley_of_a_large_matrix_that_is_not_skew_is_the_formula(generator):
    A = 1e4 * randn(5, 5, generator=generator)
    I = torch.eye(5, dtype=A.dtype)
    assert_close("(I - A/2) R", I + A / 2, (I - A / 2) @ cayley(A))


@pytest.mark.parametrize("name", ["expm", "cayley"])
@pytest.mark.parametrize("d", [1, 2, 5, 6])
def test_skew_matrices_go_to_rotations_not_reflections(name, d, generator):
    R = RETRACTIONS[name](random_skew(d, generator=generator))
    assert_close("R^T R", torch.eye(d), R.mT @ R)
    assert_close("det", 1.0, torch.linalg.det(R))


@pytest.mark.parametrize("d", [2, 3, 6, 7])
def test_expm_reaches_every_rotation(d, generator):
    R = random_stiefel(d, generator=generator)
    R[:, 0] *= torch.linalg.det(R).sign()
    values, vectors = np.linalg.eig(R.numpy())  # distinct for a random rotation
    log = vectors @ np.diag(1j * np.angle(values)) @ np.linalg.inv(vectors)
    assert_close("imaginary part of the logarithm", np.zeros((d, d)), log.imag)
    A = torch.from_numpy(log.real.copy())
    assert_close("A + A^T", torch.zeros(d, d), A + A.mT)
    # Eigenvectors of close eigenvalues are determined only to rounding over their distance.
    assert_close("R", R, expm(A), factor=10)


def test_expm_reaches_eigenvalue_minus_one():
    A = math.pi * basis(3, 0, 1, dtype=torch.float64)
    assert_close("exp(pi H)", torch.tensor([-1.0, -1.0, 1.0]).diag(), expm(A))


@pytest.mark.parametrize("norm", [1.0, 10.0, 1e3])
def test_cayley_cannot_reach_eigenvalue_minus_one(norm, generator):
    """The eigenvalue of i a is at distance 2 / sqrt(1 + a^2/4) from -1, never zero."""
    A = with_norm(random_skew(6, generator=generator), norm)
    speeds = np.linalg.eigvals(A.numpy()).imag
    values = np.linalg.eigvals(cayley(A).numpy())
    expected = np.sort(2 / np.sqrt(1 + speeds**2 / 4))
    assert_close("distances from -1", expected, np.sort(np.abs(values + 1)))
    assert np.abs(values + 1).min() > 1 / norm


@pytest.mark.parametrize("theta", [-40.0, -1.0, 1e-3, 0.5, 2.0, 1e3])
def test_cayley_turns_a_plane_by_twice_the_arctangent_of_half_the_angle(theta):
    R = cayley(theta * basis(2, 0, 1, dtype=torch.float64))
    angle = 2 * math.atan(theta / 2)
    assert abs(angle) < math.pi
    expected = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    assert_close("R", torch.tensor(expected, dtype=torch.float64), R)


def test_cayley_agrees_with_expm_to_second_order(generator):
    A = with_norm(random_skew(8, generator=generator), 1.0)
    steps = [0.1, 0.05, 0.025, 0.0125]
    errors = [torch.linalg.norm(cayley(t * A) - expm(t * A)).item() for t in steps]
    assert fitted_slope(steps, errors) == pytest.approx(3.0, abs=0.05)


def test_cayley_overshoots_expm_by_a_twelfth_of_the_cube(generator):
    A = with_norm(random_skew(8, generator=generator), 1.0)
    t = 1e-3
    gap = (cayley(t * A) - expm(t * A)) / t**3
    # Next term t A^4 / 12 is 1e-4; rounding over t^3 is 1e-7.
    assert_close("(cayley - exp) / t^3", A @ A @ A / 12, gap, factor=1e9)


@pytest.mark.parametrize("name", RETRACTIONS)
def test_derivative_at_zero_is_plus_the_generator(name, generator):
    A, t = random_skew(6, generator=generator), 1e-5
    slope = (RETRACTIONS[name](t * A) - RETRACTIONS[name](-t * A)) / (2 * t)
    # Central differences: t^2 |A|^3 truncation and rounding / t are about 1e-10.
    assert_close("derivative", A, slope, factor=1e4)


def test_printed_cayley_is_the_inverse_of_ours_with_derivative_minus_the_generator(generator):
    """Erratum E1."""
    A, t = random_skew(6, generator=generator), 1e-5
    assert_close("Y(A)", cayley(A).mT, printed_cayley(A))
    slope = (printed_cayley(t * A) - printed_cayley(-t * A)) / (2 * t)
    assert_close("derivative", -A, slope, factor=1e4)  # central differences, as above


@pytest.mark.parametrize("name", RETRACTIONS)
def test_positive_step_ascends_and_negative_step_descends(name, ascent):
    X, W, objective = ascent
    assert objective(RETRACTIONS[name](1e-3 * W) @ X) > objective(X)
    assert objective(RETRACTIONS[name](-1e-3 * W) @ X) < objective(X)


def test_printed_cayley_descends_where_the_exponential_ascends(ascent):
    """Erratum E1: in Eq. 4 it would minimise the function to be maximised."""
    X, W, objective = ascent
    assert objective(printed_cayley(1e-3 * W) @ X) < objective(X) < objective(expm(1e-3 * W) @ X)


@pytest.mark.parametrize("name", RETRACTIONS)
def test_ascent_rate_is_half_the_squared_norm_of_omega(name, ascent):
    X, W, objective = ascent
    t = 1e-6
    ahead, behind = RETRACTIONS[name](t * W) @ X, RETRACTIONS[name](-t * W) @ X
    slope = (objective(ahead) - objective(behind)) / (2 * t)
    # Central differences: t^2 |W|^3 truncation and rounding / t are about 1e-9 of the slope.
    assert_close("dF/dt", W.square().sum() / 2, slope, factor=1e4)


@pytest.mark.parametrize("terms", [0, 1, 2, 5, 30])
def test_taylor_is_the_plain_partial_sum(terms, generator):
    A = random_skew(5, generator=generator)
    powers = [np.linalg.matrix_power(A.numpy(), n) / math.factorial(n) for n in range(terms + 1)]
    assert_close("taylor", np.sum(powers, axis=0), taylor(A, terms))


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_taylor_has_the_order_of_its_last_term(terms, generator):
    A = with_norm(random_skew(8, generator=generator), 1.0)
    steps = [0.4, 0.2, 0.1, 0.05]
    errors = [torch.linalg.norm(taylor(t * A, terms) - scipy_expm(t * A)).item() for t in steps]
    assert fitted_slope(steps, errors) == pytest.approx(terms + 1, abs=0.1)


def test_taylor_leaves_the_manifold_where_expm_stays(generator):
    A = with_norm(random_skew(8, generator=generator), 1.0)
    assert orthogonality_error(taylor(A, terms=3)) > 1e-2
    assert orthogonality_error(expm(A)) < 1e-13


@pytest.mark.parametrize("terms", [100, 200])
def test_taylor_fails_at_norm_60_where_expm_does_not(terms, generator):
    A = with_norm(random_skew(16, generator=generator), 60.0)
    exact = scipy_expm(A)
    assert torch.linalg.norm(taylor(A, terms) - exact) > 1e3  # an orthogonal matrix has norm 4
    assert torch.linalg.norm(expm(A) - exact) < 1e-11


def test_more_taylor_terms_do_not_help_because_rounding_breaks_the_series(generator):
    A = with_norm(random_skew(16, generator=generator), 30.0)
    exact = scipy_expm(A)
    errors = [torch.linalg.norm(taylor(A, terms) - exact).item() for terms in (100, 200)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)
    assert 1e-6 < errors[1] < 1.0  # eps * e^30 / 30 is about 1e-4
    low = A.float()
    assert torch.linalg.norm(taylor(low, 200).double() - exact) > 1e3
    assert torch.linalg.norm(expm(low).double() - exact) < 1e-3


def test_taylor_is_accurate_at_small_norms(generator):
    A = with_norm(random_skew(16, generator=generator), 1.0)
    assert_close("taylor", scipy_expm(A), taylor(A, terms=20))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["expm", "cayley"])
def test_half_precisions_round_only_the_input_and_the_result(name, dtype, generator):
    A = random_skew(16, generator=generator, dtype=dtype)
    R = RETRACTIONS[name](A)
    assert R.dtype == dtype
    assert torch.equal(R, RETRACTIONS[name](A.float()).to(dtype))
    assert_close("R", RETRACTIONS[name](A.double()), R, dtype)


@pytest.mark.parametrize("norm", [1e3, 1e6, 1e8])
@pytest.mark.parametrize("retraction", [expm, cayley], ids=["expm", "cayley"])
@pytest.mark.parametrize("d", [5, 6])
def test_float32_rotations_stay_orthogonal_at_large_norms(d, retraction, norm, generator):
    A = with_norm(random_skew(d, generator=generator), norm).float()
    R = retraction(A)
    assert_close("R^T R", torch.eye(d), R.mT @ R, torch.float32)


def test_an_exponential_that_overflows_says_so():
    with pytest.raises(NonFiniteError, match=r"overflows: its largest entry is 1.0e.05.*step"):
        expm(1e5 * torch.eye(3))


def test_the_cayley_transform_of_a_matrix_with_eigenvalue_two_says_so():
    with pytest.raises(NotOnManifoldError, match="invertible, which holds for skew"):
        cayley(2 * torch.eye(3))


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
@pytest.mark.parametrize("dtype, factor", [(torch.float64, 0.1), (torch.float32, 0.2)], ids=str)
def test_expm_is_accurate_at_every_norm_also_for_a_single_matrix(batch, dtype, factor, generator):
    # torch's own is off by 3e-11 (5e-6 in float32) on a single matrix of a norm around 0.03 (0.4).
    for norm in np.logspace(-4, 0.5, 60):
        A = with_norm(random_skew(4, generator=generator, batch=batch), float(norm)).to(dtype)
        first = A.reshape(-1, 4, 4)[0].double()
        R = expm(A).reshape(-1, 4, 4)[0]
        assert_close("expm", scipy_expm(first), R, dtype, factor=factor)
