"""Learn a metric for nearest neighbours, then approximate a kernel with orthogonal features."""

import numpy as np
from sklearn.datasets import load_wine
from sklearn.kernel_approximation import RBFSampler
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from skewflow.problems import MahalanobisMetric, OrthogonalRandomFeatures


def errors(n_components=2):
    """Fractions of wrong votes of neighbours on wine, with two features and with learned ones."""
    X, y = load_wine(return_X_y=True)
    train, test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    metric = MahalanobisMetric(n_components, steps=100).fit(train, y_train)
    found = []
    for a, b in (
        (train[:, :n_components], test[:, :n_components]),
        (metric.transform(train), metric.transform(test)),
    ):
        found.append(1 - KNeighborsClassifier(3).fit(a, y_train).score(b, y_test))
    return found


def kernel_errors(d=16, gamma=0.5):
    """Mean squared errors of a Gaussian kernel by independent and by orthogonal directions."""
    X = np.random.default_rng(0).standard_normal((30, d)) / 4
    K = np.exp(-gamma * ((X[:, None] - X) ** 2).sum(-1))
    for kind in (RBFSampler, OrthogonalRandomFeatures):
        features = [
            kind(gamma=gamma, n_components=10 * d, random_state=seed).fit_transform(X)
            for seed in range(20)
        ]
        yield np.mean([((Z @ Z.T - K) ** 2).mean() for Z in features])


def main():
    """Print the errors of the votes and of the kernels."""
    before, after = errors()
    print(f"wrong with two features {before:.1%}, with two learned coordinates {after:.1%}")
    gaussian, orthogonal = kernel_errors()
    print(f"kernel error {gaussian:.2e} with Gaussian directions, {orthogonal:.2e} with orthogonal")


if __name__ == "__main__":
    main()
