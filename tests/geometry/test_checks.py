import numpy as np
import pytest
import torch

from helpers import EPS, STIEFEL_SHAPES, assert_close, randn, random_skew, random_stiefel
from skewflow.errors import NotOnManifoldError
from skewflow.geometry import (
    Check,
    check_skew,
    check_special,
    check_stiefel,
    check_tangent,
    orthogonality_error,
    require,
    tangent_project,
)


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_orthogonality_error_is_the_frobenius_norm_of_the_residual(d, k, generator):
    X = randn(d, k, generator=generator)
    residual = X.numpy().T @ X.numpy() - np.eye(k)
    assert_close("error", np.linalg.norm(residual), orthogonality_error(X))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_orthogonality_error_of_half_precisions_is_that_of_the_stored_weights(dtype, generator):
    X = random_stiefel(32, 16, generator=generator, dtype=dtype)
    error = orthogonality_error(X)
    assert error.dtype == torch.float32
    assert_close("error", orthogonality_error(X.double()), error, torch.float32)
    assert error > torch.finfo(dtype).eps / 10  # rounding is seen, not lost in rounding again


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_rounded_orthonormal_matrices_pass_in_every_dtype(d, k, dtype, generator):
    X = random_stiefel(d, k, generator=generator, dtype=dtype)
    assert check_stiefel(X) == Check(True, "")


@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_ten_percent_longer_columns_fail_in_every_dtype(dtype, generator):
    X = 1.1 * random_stiefel(7, 3, generator=generator, dtype=dtype)
    assert not check_stiefel(X)


def test_tolerance_bounds_the_largest_entry_of_the_residual():
    X = torch.eye(3, dtype=torch.float64)
    X[0, 0] = 1.5  # residual 1.25
    assert check_stiefel(X, tol=1.26)
    assert not check_stiefel(X, tol=1.24)


def test_one_bad_matrix_fails_its_batch(generator):
    X = random_stiefel(5, 3, batch=(2, 4), generator=generator)
    assert check_stiefel(X)
    X[1, 2] *= 2
    assert not check_stiefel(X)


def test_reason_states_rule_value_and_way_out_for_a_matrix_off_the_manifold():
    reason = check_stiefel(2 * torch.eye(2, dtype=torch.float64)).reason
    assert reason.startswith("`X` is not orthonormal: max |X^T X - I| = 3.0e+00 exceeds 1e-10")
    assert "torch.float64" in reason
    assert reason.endswith("Call `geometry.project(X)` for the nearest orthonormal matrix.")


def test_rotations_are_special_and_reflections_are_not(generator):
    X = random_stiefel(4, batch=(6,), generator=generator)
    X[..., 0] *= torch.linalg.det(X).sign()[:, None]
    assert check_special(X) == Check(True, "")
    X[:2, :, 0] *= -1
    check = check_special(X)
    assert not check
    assert check.reason.startswith("`X` is not in SO(d): 2 of its matrices have determinant -1")
    assert "Negate one column" in check.reason


def test_a_large_reflection_is_refused(generator):
    X = random_stiefel(600, generator=generator, dtype=torch.float32)
    X[:, 0] *= torch.linalg.slogdet(X.double()).sign
    assert check_special(X)
    X[:, 0] *= -1
    assert "1 of its matrices have determinant -1" in check_special(X).reason


def test_a_matrix_off_the_manifold_is_not_special_for_that_reason():
    X = 2 * torch.eye(3)
    assert check_special(X) == check_stiefel(X)


@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_skew_matrices_pass_and_others_fail_in_every_dtype(dtype, generator):
    A = random_skew(5, generator=generator, dtype=dtype)
    assert check_skew(A) == Check(True, "")
    A[0, 1] += 1
    check = check_skew(A)
    assert not check
    assert check.reason.startswith("`A` is not skew-symmetric: max |A + A^T| = 1.0e+00 exceeds")
    assert check.reason.endswith("Take its skew part with `geometry.skew(A)`.")


def test_skewness_is_judged_relative_to_the_largest_entry(generator):
    A = random_skew(5, generator=generator)
    A[0, 1] += 1e-8
    assert not check_skew(A)
    assert check_skew(1e3 * A / A.abs().max(), tol=1e-8)


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_projected_vectors_are_tangent_in_every_dtype(d, k, dtype, generator):
    X = random_stiefel(d, k, generator=generator)
    Z = tangent_project(X, randn(d, k, generator=generator))
    assert check_tangent(X.to(dtype), Z.to(dtype)) == Check(True, "")


def test_the_point_itself_is_not_tangent():
    X = torch.eye(4, 2, dtype=torch.float64)
    check = check_tangent(X, X)
    assert not check
    assert check.reason.startswith("`Z` is not tangent at `X`: max |X^T Z + Z^T X| = 2.0e+00")
    assert check.reason.endswith("Project it with `geometry.tangent_project(X, Z)`.")


def test_large_tangent_vectors_do_not_overflow_the_check_in_float16():
    """X^T Z has entries of 1e5, beyond float16, although X and Z are within."""
    X = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, -0.5], [0.5, -0.5]])
    Z = X @ torch.tensor([[0.0, 1e5], [-1e5, 0.0]])
    assert check_tangent(X.half(), Z.half())


def test_require_raises_the_reason_and_is_silent_otherwise():
    require(Check(True, ""))
    with pytest.raises(NotOnManifoldError, match="too long"):
        require(Check(False, "too long"))
    with pytest.raises(ValueError, match=r"not orthonormal.*geometry\.project"):
        require(check_stiefel(2 * torch.eye(2)))
