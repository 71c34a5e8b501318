import numpy as np
import pytest
import torch

from helpers import STIEFEL_SHAPES, assert_close, matrix_rank, randn, random_skew, random_stiefel
from skewflow.geometry import (
    basis,
    check_tangent,
    complement,
    tangent_dimension,
    tangent_from,
    tangent_project,
)

SMALL_SHAPES = [(d, k) for d in range(1, 6) for k in range(1, d + 1)]


def spanning_set(X):
    """X A + X_perp B for every basis matrix A of Sk(k) and every single entry of B."""
    d, k = X.shape
    zero, no_rows = torch.zeros(k, k, dtype=X.dtype), torch.zeros(d - k, k, dtype=X.dtype)
    vectors = [
        tangent_from(X, basis(k, i, j, dtype=X.dtype), no_rows if k < d else None)
        for i in range(k)
        for j in range(i + 1, k)
    ]
    for entry in torch.eye((d - k) * k, dtype=X.dtype):
        vectors.append(tangent_from(X, zero, entry.view(d - k, k)))
    return vectors


@pytest.mark.parametrize("d, k", SMALL_SHAPES)
def test_dimension_is_the_rank_of_the_vectors_of_lemma_2_3(d, k, generator):
    vectors = spanning_set(random_stiefel(d, k, generator=generator))
    assert len(vectors) == tangent_dimension(d, k)
    assert not vectors or matrix_rank(vectors) == tangent_dimension(d, k)


@pytest.mark.parametrize("d, k", SMALL_SHAPES)
def test_dimension_is_what_the_constraint_leaves_free(d, k, generator):
    X = random_stiefel(d, k, generator=generator)
    units = torch.eye(d * k, dtype=X.dtype).view(d * k, d, k)
    constraint = X.mT @ units + units.mT @ X  # the derivative of X^T X along each unit matrix
    assert d * k - matrix_rank(list(constraint)) == tangent_dimension(d, k)


@pytest.mark.parametrize("d, k", [(d, k) for d, k in SMALL_SHAPES if d > 1])
def test_rotating_rows_reaches_every_tangent_direction(d, k, generator):
    X = random_stiefel(d, k, generator=generator)
    velocities = [basis(d, i, j, dtype=X.dtype) @ X for i in range(d) for j in range(i + 1, d)]
    assert matrix_rank(velocities) == tangent_dimension(d, k)


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_vectors_of_lemma_2_3_are_tangent_and_give_their_coordinates_back(d, k, generator):
    X = random_stiefel(d, k, generator=generator)
    A, B = random_skew(k, generator=generator), randn(d - k, k, generator=generator)
    Z = tangent_from(X, A, B if k < d else None)
    assert_close("X^T Z + Z^T X", torch.zeros(k, k), X.mT @ Z + Z.mT @ X)
    assert_close("A", A, X.mT @ Z)
    assert_close("B", B, complement(X).mT @ Z)


def test_only_the_skew_part_of_a_counts(generator):
    X, A = random_stiefel(5, generator=generator), randn(5, 5, generator=generator)
    assert_close("Z", tangent_from(X, (A - A.mT) / 2), tangent_from(X, A))


def test_an_empty_b_is_as_good_as_none_on_square_matrices(generator):
    X, A = random_stiefel(4, generator=generator), random_skew(4, generator=generator)
    assert torch.equal(tangent_from(X, A, X.new_zeros(0, 4)), tangent_from(X, A))


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
def test_complement_completes_x_to_an_orthogonal_matrix(d, k, generator):
    X = random_stiefel(d, k, generator=generator)
    full = torch.cat([X, complement(X)], dim=1)
    assert_close("[X X_perp]", torch.eye(d), full.mT @ full)


@pytest.mark.parametrize("d, k", [(1, 1), (4, 4), (5, 1), (5, 3), (6, 4)])
def test_tangent_projection_is_the_nearest_tangent_vector(d, k, generator):
    X, Z = random_stiefel(d, k, generator=generator), randn(d, k, generator=generator)
    vectors = [v.numpy().ravel() for v in spanning_set(X)]
    directions = np.stack([np.zeros(d * k), *vectors], axis=1)
    coordinates = np.linalg.lstsq(directions, Z.numpy().ravel(), rcond=None)[0]
    assert_close("Z", (directions @ coordinates).reshape(d, k), tangent_project(X, Z))


def test_tangent_projection_keeps_tangent_vectors(generator):
    X = random_stiefel(7, 3, generator=generator)
    Z = tangent_project(X, randn(7, 3, generator=generator))
    assert check_tangent(X, Z)
    assert_close("Z", Z, tangent_project(X, Z))


def test_tangent_projection_removes_normal_vectors(generator):
    X, S = random_stiefel(7, 3, generator=generator), randn(3, 3, generator=generator)
    assert_close("Z", torch.zeros(7, 3), tangent_project(X, X @ (S + S.mT)))
