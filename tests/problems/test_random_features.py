"""Random features: scikit-learn's rules, the law of the directions, and their error."""

import numpy as np
import pytest
import torch
from sklearn.kernel_approximation import RBFSampler
from sklearn.utils.estimator_checks import check_estimator

from skewflow.problems import OrthogonalRandomFeatures
from skewflow.problems.random_features import random_product


@pytest.mark.filterwarnings("ignore")
def test_it_is_a_transformer_of_scikit_learn():
    check_estimator(OrthogonalRandomFeatures(n_components=10, matchings=2))


@pytest.mark.parametrize("matchings", [None, 5])
def test_directions_of_a_block_are_orthogonal_and_lengths_those_of_gaussians(matchings):
    X = np.zeros((2, 16))
    features = OrthogonalRandomFeatures(
        gamma=0.5, n_components=4000, matchings=matchings, random_state=1
    )
    W = features.fit(X).random_weights_.T
    block = W[:16] / np.linalg.norm(W[:16], axis=1, keepdims=True)
    assert np.allclose(block @ block.T, np.eye(16), atol=1e-12)
    squares = (W**2).sum(1)  # chi squared with 16 degrees of freedom: mean 16, variance 32
    assert abs(squares.mean() - 16) < 4 * (32 / 4000) ** 0.5


def error(transformer, X, K):
    found = []
    for seed in range(15):
        Z = transformer.set_params(random_state=seed).fit_transform(X)
        found.append(((Z @ Z.T - K) ** 2).mean())
    return np.mean(found)


def test_orthogonal_directions_have_a_smaller_error_than_gaussian_ones():
    X = np.random.default_rng(0).standard_normal((30, 16)) / 4
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    gaussian = error(RBFSampler(gamma=0.5, n_components=160), X, K)
    haar = error(OrthogonalRandomFeatures(gamma=0.5, n_components=160), X, K)
    products = error(OrthogonalRandomFeatures(gamma=0.5, n_components=160, matchings=12), X, K)
    assert haar < gaussian and products < gaussian


@pytest.mark.parametrize("d, block_size", [(7, 2), (8, 3), (5, 5)])
def test_a_product_is_a_rotation(d, block_size, generator):
    Q = random_product(d, 9, block_size, generator)
    assert torch.allclose(Q @ Q.mT, torch.eye(d, dtype=Q.dtype))
    assert torch.linalg.det(Q).item() == pytest.approx(1)


def test_no_matching_leaves_the_axes_and_one_mixes_pairs(generator):
    assert torch.equal(random_product(6, 0, 2, generator), torch.eye(6, dtype=torch.float64))
    assert ((random_product(6, 1, 2, generator) != 0).sum(0) == 2).all()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"gamma": 0.0}, "`gamma` must be a positive number: got 0.0"),
        ({"gamma": "scale"}, "`gamma` must be a positive number: got 'scale'"),
        ({"n_components": 0}, "`n_components` must be a whole number of at least 1"),
        ({"matchings": -1}, "`matchings` must be a whole number of at least 0"),
        ({"block_size": 1}, "`block_size` must be a whole number of at least 2"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        OrthogonalRandomFeatures(**options).fit(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="NaN"):
        OrthogonalRandomFeatures().fit(np.full((3, 4), np.nan))
