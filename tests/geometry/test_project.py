import numpy as np
import pytest
import torch

from helpers import EPS, STIEFEL_SHAPES, assert_close, randn, random_stiefel
from skewflow.geometry import check_stiefel, project

NORMS = ["fro", 2, "nuc"]


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_projection_is_the_polar_factor(d, k, generator):
    X = randn(d, k, generator=generator)
    values, V = np.linalg.eigh((X.mT @ X).numpy())
    expected = X.numpy() @ (V / np.sqrt(values)) @ V.T  # X (X^T X)^(-1/2)
    # The oracle squares the condition number, 1e2 at most for these matrices.
    assert_close("project", expected, project(X), factor=1e2)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("d, k", [(4, 4), (7, 3)])
def test_projection_is_the_nearest_point_in_unitarily_invariant_norms(norm, d, k, generator):
    X = randn(d, k, generator=generator)
    values = torch.linalg.svdvals(X)
    distance = torch.linalg.matrix_norm(X - project(X), norm)
    assert_close("distance", torch.linalg.matrix_norm((values - 1).diag(), norm), distance)
    others = random_stiefel(d, k, batch=(500,), generator=generator)
    near = torch.linalg.qr(project(X) + 0.1 * randn(500, d, k, generator=generator)).Q
    near = near * (near * project(X)).sum(-2, keepdim=True).sign()
    for rivals in (others, near):
        assert (torch.linalg.matrix_norm(X - rivals, norm) >= distance).all()


def test_points_of_the_manifold_stay(generator):
    X = random_stiefel(7, 3, generator=generator)
    assert_close("project", X, project(X))


def test_projection_ignores_a_positive_scale(generator):
    X = randn(6, 4, generator=generator)
    assert_close("project", project(X), project(1e-6 * X))


def test_projection_commutes_with_rotations_on_both_sides(generator):
    X = randn(6, 4, generator=generator)
    P, Q = random_stiefel(6, generator=generator), random_stiefel(4, generator=generator)
    # The condition number of X, about 5, multiplies the rounding.
    assert_close("project", P @ project(X) @ Q, project(P @ X @ Q), factor=10)


def test_projection_keeps_the_sign_of_the_determinant(generator):
    X = randn(200, 4, 4, generator=generator)
    assert torch.equal(torch.linalg.det(X).sign(), torch.linalg.det(project(X)).sign())


def test_rank_deficient_matrices_have_a_nearest_point_too(generator):
    X = randn(6, 1, generator=generator).expand(6, 3)
    assert check_stiefel(project(X), tol=1e-12)
    assert check_stiefel(project(torch.zeros(6, 3, dtype=torch.float64)), tol=1e-12)


@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_projection_removes_the_drift_of_every_dtype(dtype, generator):
    X = random_stiefel(16, 8, generator=generator)
    drifted = (X + 0.1 * randn(16, 8, generator=generator)).to(dtype)
    Y = project(drifted)
    assert Y.dtype == dtype
    assert not check_stiefel(drifted)
    assert check_stiefel(Y)
    assert_close("project", project(drifted.double()), Y, dtype)
