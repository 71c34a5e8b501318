"""Data sets with classes, split into points to train on and points to test on."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data import load_images

MNIST_TEST = 10_000
"""Number of images of the pool of 70,000 that are not used for training."""

Array = NDArray[Any]
Split = tuple[Array, Array, Array, Array]


def splits(cell: str, parts: int, repeats: int, scored: int, seed: int) -> Iterator[Split]:
    """Points and classes to train on and to test on, split by split.

    Args:
        cell: "mnist", or a set of scikit-learn.
        parts: Number of parts of a set; each is the test set once.
        repeats: Number of partitions of a set; MNIST has one.
        scored: Number of test images of a split of MNIST.
        seed: Seed of the partitions.
    """
    if cell == "mnist":
        yield from _mnist(parts, scored, seed)
        return
    from sklearn import datasets
    from sklearn.model_selection import RepeatedStratifiedKFold

    load = {
        "wine": datasets.load_wine,
        "breast-cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
    }[cell]
    X, y = load(return_X_y=True)
    folds = RepeatedStratifiedKFold(n_splits=parts, n_repeats=repeats, random_state=seed)
    for train, test in folds.split(X, y):
        if cell == "digits":  # all pixels have the same unit
            X_train, X_test = X[train] / 16, X[test] / 16
        else:
            mean, scale = X[train].mean(0), X[train].std(0)
            X_train, X_test = (X[train] - mean) / scale, (X[test] - mean) / scale
        yield X_train, y[train], X_test, y[test]


def _mnist(parts: int, scored: int, seed: int) -> Iterator[Split]:
    both = [load_images("mnist", "train"), load_images("mnist", "test")]
    X = np.concatenate([images.pixels.flatten(1).numpy() for images in both])
    y = np.concatenate([images.labels.numpy() for images in both])
    order = np.random.default_rng(seed).permutation(len(X))
    for number in range(parts):
        turned = np.roll(order, -number * scored)
        test, train = turned[:scored], turned[MNIST_TEST:]
        yield X[train], y[train], X[test], y[test]
