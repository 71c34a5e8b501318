"""Learned metrics: scikit-learn's rules, known optima, and bad input."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import check_estimator

from skewflow.problems import MahalanobisMetric
from skewflow.problems.metric_learning.losses import LOSSES, MARGIN


@pytest.mark.filterwarnings("ignore")
def test_it_is_an_estimator_of_scikit_learn():
    check_estimator(MahalanobisMetric(steps=3))


def hidden_direction(n=120, seed=0):
    """Classes that differ in one direction of six, and noise ten times as large in the others."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    X = rng.standard_normal((n, 6)) * 10
    X[:, 2] = y + 0.1 * rng.standard_normal(n)
    return X, y


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_matrix_is_positive_of_rank_k_and_is_that_of_the_transform(loss, optimizer):
    X, y = hidden_direction()
    metric = MahalanobisMetric(3, loss=loss, optimizer=optimizer, steps=5, batch_size=40).fit(X, y)
    M, Z = metric.get_mahalanobis_matrix(), metric.transform(X)
    U, D = metric.directions_, metric.scales_
    assert np.allclose(U.T @ U, np.eye(3), atol=1e-10) and (D > 0).all()
    assert np.allclose(M, U @ np.diag(D) @ U.T)
    assert np.linalg.matrix_rank(M) == 3
    difference = X[0] - X[1]
    assert difference @ M @ difference == pytest.approx(((Z[0] - Z[1]) ** 2).sum())


def test_the_direction_that_tells_classes_apart_is_found():
    X, y = hidden_direction()
    metric = MahalanobisMetric(steps=400, learning_rate=0.05).fit(X, y)
    neighbours = KNeighborsClassifier(1)
    raw = neighbours.fit(X[:80], y[:80]).score(X[80:], y[80:])
    Z = metric.transform(X)
    assert neighbours.fit(Z[:80], y[:80]).score(Z[80:], y[80:]) > max(0.9, raw + 0.2)
    assert np.mean(metric.losses_[-20:]) < metric.losses_[0] / 2


def test_nca_is_the_loss_of_scikit_learn_up_to_its_logarithm():
    rng = np.random.default_rng(1)
    Z, y = rng.standard_normal((8, 2)), np.array([0, 0, 0, 1, 1, 2, 2, 2])
    p = np.exp(-((Z[:, None] - Z) ** 2).sum(-1))
    np.fill_diagonal(p, 0)
    p /= p.sum(1, keepdims=True)
    expected = -np.log((p * (y[:, None] == y)).sum(1)).mean()
    found = LOSSES["nca"](torch.from_numpy(Z), torch.from_numpy(y))
    assert float(found) == pytest.approx(expected)


def test_pairs_and_triplets_are_their_definitions():
    Z, y = torch.tensor([[0.0], [0.1], [0.6]], dtype=torch.float64), torch.tensor([0, 0, 1])
    pull = (0.1**2 + 0.1**2) / 2
    push = ((MARGIN - 0.6) ** 2 + (MARGIN - 0.5) ** 2) / 2
    assert float(LOSSES["pairs"](Z, y)) == pytest.approx(pull + push)
    hinges = [MARGIN + 0.01 - 0.36, MARGIN + 0.01 - 0.25]
    assert float(LOSSES["triplets"](Z, y)) == pytest.approx(0.01 + 3 * sum(hinges) / 2 / 2)


def test_on_wine_it_is_as_good_as_the_raw_metric_in_a_pipeline():
    X, y = load_wine(return_X_y=True)
    model = make_pipeline(MahalanobisMetric(steps=60), KNeighborsClassifier(3))
    ours = cross_val_score(model, scale(X), y).mean()
    assert ours >= cross_val_score(KNeighborsClassifier(3), scale(X), y).mean() - 0.02


def test_one_feature_has_only_a_scale():
    X, y = np.arange(8.0)[:, None], [0] * 4 + [1] * 4
    assert MahalanobisMetric(steps=3).fit(X, y).transform(X).shape == (8, 1)


def test_gradients_may_be_switched_off_outside():
    X, y = hidden_direction()
    with torch.no_grad():
        assert len(MahalanobisMetric(2, steps=2).fit(X, y).losses_) == 2


def test_it_has_the_shape_of_nca():
    X, y = hidden_direction()
    ours = MahalanobisMetric(2, steps=2).fit(X, y)
    theirs = NeighborhoodComponentsAnalysis(2, max_iter=2, random_state=0).fit(X, y)
    assert ours.components_.shape == theirs.components_.shape


@pytest.mark.parametrize(
    "options, words",
    [
        ({"loss": "lmnn"}, "`loss` must be one of 'nca'"),
        ({"optimizer": "lbfgs"}, "`optimizer` must be one of"),
        ({"steps": 0}, "`steps` must be a whole number of at least 1: got 0"),
        ({"batch_size": 1}, "`batch_size` must be a whole number of at least 2"),
        ({"learning_rate": -1.0}, "`learning_rate` must be a positive number: got -1.0"),
        ({"learning_rate": "fast"}, "`learning_rate` must be a positive number: got 'fast'"),
        ({"loss": ["nca"]}, "`loss` must be one of 'nca'"),
        ({"n_components": 7}, "between 1 and the number of features, 6: got 7"),
    ],
)
def test_bad_options_are_refused(options, words):
    X, y = hidden_direction()
    with pytest.raises(ValueError, match=words):
        MahalanobisMetric(**options).fit(X, y)


def test_bad_classes_and_points_are_refused():
    X, y = hidden_direction(10)
    metric = MahalanobisMetric(steps=2)
    with pytest.raises(ValueError, match="at least two samples: class .*9.* has one"):
        metric.fit(X, [0, 0, 0, 0, 0, 1, 1, 1, 1, 9])
    with pytest.raises(ValueError, match="at least two classes: got 1 class"):
        metric.fit(X, np.zeros(10, dtype=int))
    with pytest.raises(ValueError, match=r"`X` must have a largest number between"):
        metric.fit(X * 1e200, np.arange(10) % 2)
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        metric.fit(X, y)
    assert not hasattr(metric, "components_")
