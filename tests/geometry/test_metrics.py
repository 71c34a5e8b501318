import pytest
import torch

from helpers import STIEFEL_SHAPES, assert_close, randn, random_skew, random_stiefel, scipy_expm
from skewflow.geometry import (
    check_tangent,
    complement,
    inner,
    omega,
    riemannian_gradient,
    tangent_from,
)

METRICS = ["canonical", "euclidean"]


def random_tangent(X, generator):
    d, k = X.shape
    B = randn(d - k, k, generator=generator) if k < d else None
    return tangent_from(X, random_skew(k, generator=generator), B)


def trace_product(A, B):
    return torch.einsum("ij,ij->", A, B)


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_canonical_product_is_the_bracketed_trace(d, k, generator):
    """Erratum E8: the bracket closes after the second vector."""
    X = random_stiefel(d, k, generator=generator)
    Z1, Z2 = random_tangent(X, generator), random_tangent(X, generator)
    P = torch.eye(d, dtype=X.dtype) - X @ X.mT / 2
    assert_close("inner", torch.trace(Z1.mT @ P @ Z2), inner(X, Z1, Z2))


def test_canonical_product_counts_each_skew_coordinate_once(generator):
    """With Z = X A + X_perp B it is the sum over i < j of A_ij^2 plus all B^2."""
    X = random_stiefel(6, 4, generator=generator)
    A, B = random_skew(4, generator=generator), randn(2, 4, generator=generator)
    Z = tangent_from(X, A, B)
    assert_close("canonical", A.triu().square().sum() + B.square().sum(), inner(X, Z, Z))
    assert_close("euclidean", A.square().sum() + B.square().sum(), inner(X, Z, Z, "euclidean"))


@pytest.mark.parametrize("metric", METRICS)
def test_products_do_not_see_a_rotation_of_the_space(metric, generator):
    X, Q = random_stiefel(6, 4, generator=generator), random_stiefel(6, generator=generator)
    Z1, Z2 = random_tangent(X, generator), random_tangent(X, generator)
    assert_close("inner", inner(X, Z1, Z2, metric), inner(Q @ X, Q @ Z1, Q @ Z2, metric))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_gradient_represents_the_derivative_in_its_metric(metric, d, k, generator):
    X, G = random_stiefel(d, k, generator=generator), randn(d, k, generator=generator)
    R = riemannian_gradient(X, G, metric)
    assert check_tangent(X, R)
    for _ in range(3):
        Z = random_tangent(X, generator)
        assert_close("<R, Z>", trace_product(G, Z), inner(X, R, Z, metric))


def test_default_metric_is_the_canonical_one(generator):
    X, G = random_stiefel(6, 4, generator=generator), randn(6, 4, generator=generator)
    Z = random_tangent(X, generator)
    assert torch.equal(riemannian_gradient(X, G), riemannian_gradient(X, G, "canonical"))
    assert torch.equal(inner(X, Z, Z), inner(X, Z, Z, "canonical"))


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_canonical_gradient_is_omega_times_x(d, k, generator):
    X, G = random_stiefel(d, k, generator=generator), randn(d, k, generator=generator)
    assert_close("R", omega(X, G) @ X, riemannian_gradient(X, G))


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_slope_along_the_gradient_is_half_the_squared_norm_of_omega(d, k, generator):
    X, G = random_stiefel(d, k, generator=generator), randn(d, k, generator=generator)
    W, R = omega(X, G), riemannian_gradient(X, G)
    assert_close("tr(G^T omega X)", W.square().sum() / 2, trace_product(G, W @ X))
    assert_close("squared canonical norm", W.square().sum() / 2, inner(X, R, R))


@pytest.mark.parametrize("d", [2, 5, 16])
def test_euclidean_gradient_is_half_the_canonical_one_on_square_matrices(d, generator):
    X, G = random_stiefel(d, generator=generator), randn(d, d, generator=generator)
    half = riemannian_gradient(X, G) / 2
    assert_close("gradient", half, riemannian_gradient(X, G, "euclidean"))


def test_metrics_give_the_same_gradient_on_the_sphere(generator):
    X, G = random_stiefel(5, 1, generator=generator), randn(5, 1, generator=generator)
    assert_close("R", riemannian_gradient(X, G), riemannian_gradient(X, G, "euclidean"))


@pytest.mark.parametrize("d, k", [(6, 4), (7, 3), (33, 17)])
def test_euclidean_gradient_is_no_multiple_of_the_canonical_one_in_between(d, k, generator):
    """It halves the part inside the span of X and keeps the part outside."""
    X, G = random_stiefel(d, k, generator=generator), randn(d, k, generator=generator)
    R, E = riemannian_gradient(X, G), riemannian_gradient(X, G, "euclidean")
    Xp = complement(X)
    assert_close("inside", X.mT @ R / 2, X.mT @ E)
    assert_close("outside", Xp.mT @ R, Xp.mT @ E)
    cosine = trace_product(R, E) / (torch.linalg.norm(R) * torch.linalg.norm(E))
    assert cosine < 0.99


@pytest.mark.parametrize("metric", METRICS)
def test_gradient_predicts_the_change_along_a_curve(metric, generator):
    X, M = random_stiefel(6, 4, generator=generator), randn(6, 6, generator=generator)
    M = M + M.mT
    S = random_skew(6, generator=generator)
    R = riemannian_gradient(X, 2 * M @ X, metric)  # of F(X) = tr(X^T M X)
    t = 1e-5
    ahead, behind = scipy_expm(t * S) @ X, scipy_expm(-t * S) @ X
    slope = (torch.trace(ahead.mT @ M @ ahead) - torch.trace(behind.mT @ M @ behind)) / (2 * t)
    # Central differences: t^2 |S|^3 |M| truncation and |M| rounding / t are about 1e-8.
    assert_close("dF/dt", slope, inner(X, R, S @ X, metric), factor=1e4)
