import math

import pytest
import torch

from helpers import (
    STIEFEL_SHAPES,
    assert_close,
    randn,
    random_skew,
    random_stiefel,
    scipy_expm,
)
from skewflow.geometry import (
    basis,
    check_skew,
    check_stiefel,
    complement,
    curve,
    geodesic,
    givens,
    inner,
    lift,
    omega,
    riemannian_gradient,
    tangent_from,
)


@pytest.fixture(params=STIEFEL_SHAPES, ids="d{0[0]}-k{0[1]}".format)
def start(request, generator):
    """A point and a tangent vector there."""
    d, k = request.param
    X = random_stiefel(d, k, generator=generator)
    B = randn(d - k, k, generator=generator) if k < d else None
    return X, tangent_from(X, random_skew(k, generator=generator), B)


def equation_of_geodesics(Y, velocity, acceleration):
    """Zero along canonical geodesics (Edelman, Arias and Smith 1998, Sec. 2.4)."""
    V, S = velocity, Y.mT @ velocity
    return acceleration + V @ (V.mT @ Y) + Y @ (S @ S + V.mT @ V)


def test_lift_is_skew_and_generates_the_velocity(start):
    X, Z = start
    W = lift(X, Z)
    assert check_skew(W)
    assert_close("lift X", Z, W @ X)


def test_lift_does_not_turn_the_complement_within_itself(start):
    X, Z = start
    Xp = complement(X)
    n = Xp.shape[1]
    assert_close("Xp^T lift Xp", torch.zeros(n, n), Xp.mT @ lift(X, Z) @ Xp)


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_omega_is_the_lift_of_the_canonical_gradient(d, k, generator):
    X, G = random_stiefel(d, k, generator=generator), randn(d, k, generator=generator)
    assert_close("omega", omega(X, G), lift(X, riemannian_gradient(X, G)))


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_step_of_the_paper_runs_along_a_canonical_geodesic(d, k, generator):
    X, G = random_stiefel(d, k, generator=generator), randn(d, k, generator=generator)
    step = scipy_expm(0.3 * omega(X, G)) @ X
    # scipy squares |omega| = 10..20 several times; the thin form sees the same norm.
    assert_close("step", step, geodesic(X, riemannian_gradient(X, G), 0.3), factor=10)


@pytest.mark.parametrize("t", [-0.5, 0.0, 1e-3, 1.0, 3.0])
def test_curve_is_the_exponential_of_the_generator_applied_to_x(t, generator):
    X, S = random_stiefel(6, 4, generator=generator), random_skew(6, generator=generator)
    assert_close("curve", scipy_expm(t * S) @ X, curve(X, S, t))


def test_curve_starts_at_x_with_velocity_generator_times_x(generator):
    X, S = random_stiefel(6, 4, generator=generator), random_skew(6, generator=generator)
    assert_close("start", X, curve(X, S, 0.0))
    t = 1e-5
    velocity = (curve(X, S, t) - curve(X, S, -t)) / (2 * t)
    # Central differences: t^2 |S|^3 truncation and rounding / t are about 1e-9.
    assert_close("velocity", S @ X, velocity, factor=1e4)


def test_curve_stays_on_the_manifold(generator):
    X, S = random_stiefel(6, 4, generator=generator), random_skew(6, generator=generator)
    for t in (0.1, 1.0, 10.0):
        assert check_stiefel(curve(X, S, t), tol=1e-12)


@pytest.mark.parametrize("t", [-0.5, 0.0, 0.1, 1.0])
def test_geodesic_is_the_curve_of_its_lift(start, t):
    X, Z = start
    # At (33, 17) the lift has norm 15, which scaling and squaring multiplies into the error.
    assert_close("geodesic", curve(X, lift(X, Z), t), geodesic(X, Z, t), factor=10)


def test_geodesic_solves_the_equation_of_canonical_geodesics(start):
    X, Z = start
    W, Y = lift(X, Z), geodesic(X, Z, 0.7)
    residual = equation_of_geodesics(Y, W @ Y, W @ W @ Y)
    # Terms as large as |Z|^2, up to 200 here, cancel.
    assert_close("residual", torch.zeros_like(X), residual, factor=1e3)


def test_turning_the_complement_gives_a_curve_that_is_no_geodesic(generator):
    X = random_stiefel(7, 3, generator=generator)
    Z = tangent_from(X, random_skew(3, generator=generator), randn(4, 3, generator=generator))
    Xp = complement(X)
    W = lift(X, Z) + Xp @ random_skew(4, generator=generator) @ Xp.mT
    assert_close("velocity", Z, W @ X)
    assert torch.linalg.norm(equation_of_geodesics(X, W @ X, W @ W @ X)) > 1


def test_geodesic_keeps_its_canonical_speed(start):
    X, Z = start
    h = 1e-5
    for t in (0.3, 1.0):
        velocity = (geodesic(X, Z, t + h) - geodesic(X, Z, t - h)) / (2 * h)
        Y = geodesic(X, Z, t)
        # Central differences: h^2 |Z|^3 truncation and rounding / h, 1e-8 of the speed.
        assert_close("speed", inner(X, Z, Z), inner(Y, velocity, velocity), factor=1e5)


def test_geodesic_goes_on_from_any_of_its_points(start):
    X, Z = start
    Y, W = geodesic(X, Z, 0.4), lift(X, Z)
    assert_close("geodesic", geodesic(X, Z, 1.0), geodesic(Y, W @ Y, 0.6), factor=10)  # as above


def test_geodesic_stays_on_the_manifold(start):
    X, Z = start
    assert check_stiefel(geodesic(X, Z, 2.0), tol=1e-11)


def test_geodesic_of_the_sphere_is_the_great_circle(generator):
    X = random_stiefel(5, 1, generator=generator)
    Z = tangent_from(X, torch.zeros(1, 1, dtype=X.dtype), randn(4, 1, generator=generator))
    speed = torch.linalg.norm(Z).item()
    expected = math.cos(2 * speed) * X + math.sin(2 * speed) * Z / speed
    assert_close("great circle", expected, geodesic(X, Z, 2.0))


def test_geodesic_along_a_basis_matrix_is_a_givens_rotation(generator):
    """Lemma 2.4."""
    X = random_stiefel(5, generator=generator)
    H = basis(5, 1, 3, dtype=X.dtype)
    assert_close("givens", givens(5, 1, 3, 0.8, dtype=X.dtype) @ X, geodesic(X, H @ X, 0.8))


@pytest.mark.parametrize("d, k", [(8, 3), (5, 3)])
def test_geodesic_needs_no_independent_columns(d, k, generator):
    X, A = random_stiefel(d, k, generator=generator), random_skew(k, generator=generator)
    B = randn(d - k, k, generator=generator)
    B[:, 0] = 0
    for Z in (tangent_from(X, A, B), tangent_from(X, 0 * A, B), X @ A, 0 * X):
        assert_close("geodesic", scipy_expm(lift(X, Z)) @ X, geodesic(X, Z))


@pytest.mark.parametrize("norm", [1e-6, 1.0, 1e2, 1e4])
def test_long_geodesics_lose_no_more_than_the_exponential_does(norm, generator):
    X = random_stiefel(9, 4, generator=generator)
    Z = tangent_from(X, random_skew(4, generator=generator), randn(5, 4, generator=generator))
    Z = Z * (norm / torch.linalg.norm(Z))
    # The same law as expm: rounding times the length of the way.
    assert check_stiefel(geodesic(X, Z), tol=1e-14 * max(1.0, norm))


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (7, 2)])
def test_geodesic_at_rest_has_finite_gradients(shape):
    """At Z = 0, X = I: where a QR of the normal part has no derivative."""
    X = torch.eye(*shape, dtype=torch.float64, requires_grad=True)
    Z = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    C = torch.arange(1.0, Z.numel() + 1, dtype=torch.float64).view(shape)
    (C * geodesic(X, Z, 0.5)).sum().backward()
    projected = C - X.detach() @ (X.detach().mT @ C + C.mT @ X.detach()) / 2
    assert_close("dZ", 0.5 * projected, Z.grad)
    assert_close("dX", C, X.grad)
