"""Angles between subspaces, and steps that do not depend on the basis of one."""

import math

import pytest
import torch

from skewflow.errors import DtypeError, NonFiniteError, ShapeError
from skewflow.geometry import curve, grassmann_distance, haar, lift, principal_angles

D, K = 12, 4


def points(generator, *batch):
    return (haar(D, K, batch=batch, generator=generator, dtype=torch.float64) for _ in range(2))


def test_angles_of_known_planes_are_found_to_full_precision():
    angles = torch.tensor([1e-12, 1e-5, 0.7, math.pi / 2 - 1e-9], dtype=torch.float64)
    X = torch.eye(2 * K, dtype=torch.float64)[:, :K]
    Y = torch.cat([angles.cos().diag(), angles.sin().diag()])
    assert torch.allclose(principal_angles(X, Y), angles, rtol=1e-6, atol=1e-18)


def test_angles_do_not_depend_on_the_bases(generator):
    X, Y = points(generator, 3)
    Q, R = (haar(K, batch=(3,), generator=generator, dtype=torch.float64) for _ in range(2))
    assert torch.allclose(principal_angles(X @ Q, Y @ R), principal_angles(X, Y))
    assert torch.allclose(principal_angles(Y, X), principal_angles(X, Y))


def test_the_distance_is_the_length_of_a_short_horizontal_curve(generator):
    X, Z = points(generator)
    Z = Z - X @ (X.mT @ Z)  # no motion inside the subspace
    Z = 0.3 * Z / torch.linalg.matrix_norm(Z)
    assert grassmann_distance(X, curve(X, lift(X, Z))).item() == pytest.approx(0.3, rel=1e-9)


def test_half_precision_keeps_its_dtype():
    X = torch.eye(4, 2, dtype=torch.bfloat16)
    assert principal_angles(X, X).dtype == torch.bfloat16


@pytest.mark.bad_input
def test_bad_points_are_refused():
    X = torch.eye(4)[:, :2]
    with pytest.raises(ShapeError, match="shape of `X`"):
        principal_angles(X, torch.eye(4)[:, :3])
    with pytest.raises(DtypeError, match="dtype"):
        principal_angles(X, X.double())
    with pytest.raises(NonFiniteError, match="finite"):
        grassmann_distance(X, X * math.nan)
