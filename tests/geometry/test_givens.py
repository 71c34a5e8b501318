import math

import pytest
import torch

from helpers import EPS, assert_close, randn, scipy_expm
from skewflow.geometry import basis, givens

ANGLES = [0.0, 1e-3, -0.7, math.pi / 2, math.pi, 100.0]


@pytest.mark.parametrize("theta", ANGLES)
@pytest.mark.parametrize("d, i, j", [(2, 0, 1), (5, 1, 3), (5, 4, 0)])
def test_givens_is_the_exponential_of_a_basis_matrix(d, i, j, theta):
    expected = scipy_expm(theta * basis(d, i, j, dtype=torch.float64))
    assert_close("givens", expected, givens(d, i, j, theta, dtype=torch.float64))


def test_givens_mixes_its_two_rows_and_leaves_the_others(generator):
    X, theta = randn(5, 3, generator=generator), 0.4
    c, s = math.cos(theta), math.sin(theta)
    expected = X.clone()
    expected[1], expected[3] = c * X[1] + s * X[3], c * X[3] - s * X[1]
    assert_close("rotated", expected, givens(5, 1, 3, theta, dtype=X.dtype) @ X)


def test_angles_in_one_plane_add_up():
    a, b, both = (givens(4, 0, 2, t, dtype=torch.float64) for t in (0.3, 1.1, 1.4))
    assert_close("product", both, a @ b)


def test_swapping_the_rows_reverses_the_rotation():
    forward, swapped = (givens(4, *p, 0.3, dtype=torch.float64) for p in ((0, 2), (2, 0)))
    assert torch.equal(swapped, forward.mT)


def test_disjoint_planes_commute():
    a, b = givens(4, 0, 2, 0.3), givens(4, 1, 3, 0.9)
    assert torch.equal(a @ b, b @ a)


@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_givens_has_the_dtype_asked_for(dtype):
    R = givens(3, 0, 1, 0.5, dtype=dtype)
    assert R.dtype == dtype
    assert_close("givens", givens(3, 0, 1, 0.5, dtype=torch.float64), R, dtype)


def test_givens_follows_the_dtype_of_a_tensor_angle():
    theta = torch.tensor(0.5, dtype=torch.float64)
    assert torch.equal(givens(3, 0, 1, theta), givens(3, 0, 1, 0.5, dtype=torch.float64))
    assert givens(3, 0, 1, theta, dtype=torch.float32).dtype == torch.float32
    assert givens(3, 0, 1, 0.5).dtype == torch.get_default_dtype()


def test_a_tensor_of_angles_gives_one_rotation_for_each():
    theta = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], dtype=torch.float64)
    R = givens(4, 1, 3, theta)
    assert R.shape == (2, 3, 4, 4)
    for place in ((0, 0), (1, 2)):
        assert torch.equal(R[place], givens(4, 1, 3, theta[place]))
