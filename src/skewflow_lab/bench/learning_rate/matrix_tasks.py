"""Matrices to be found: two problems with exact gradients, two with batches of real images."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from skewflow.geometry import haar

from ...data.images import Images
from ...runs.seeds import spawn
from ..quality.problem import Problem

BATCH = 64
SAMPLES = 10_000
"""Images that a problem has."""


class Rotation(Problem):
    r"""$\max \langle T, X \rangle$ over SO(d): Procrustes' problem, values from 1 to 0.1."""

    def __init__(self, d: int, *, seed: int = 0) -> None:
        super().__init__((d, d), "cpu", seed)
        g = spawn(seed, "rotation")
        U, V = (haar(d, special=True, generator=g) for _ in range(2))
        values = torch.logspace(0, -1, d)
        self._target = (U * values) @ V.mT
        self.optimum = -float(values.double().sum())
        self.normalise()

    def _drawn(self) -> Float[Tensor, "d d"]:
        return haar(self.shape[-1], special=True, generator=spawn(self.seed, "start"))

    def gradient(self, X: Float[Tensor, "d d"], step: int) -> Float[Tensor, "d d"]:
        """-T."""
        return self._target * -self.unit

    def loss(self, X: Float[Tensor, "d d"]) -> float:
        """The product, negative."""
        return -float((X * self._target).sum())


def resized(images: Images, d: int) -> Float[Tensor, "n d"]:
    """The first images with so many pixels, centred; of variance one on the mean."""
    width = 2 ** math.ceil(math.log2(d) / 2)
    shape = math.ceil(d / width), width
    pixels = images.pixels[:SAMPLES, None]
    rows = functional.interpolate(pixels, shape, mode="bilinear").flatten(1)[:, :d]
    rows = rows - rows.mean(0)
    return rows / rows.square().mean().sqrt()


class ImagePCA(Problem):
    r"""$\max E\|z^\top X\|^2 / 2$ for the pixels z of images, a batch at a time; k = d / 4."""

    deterministic = False

    def __init__(self, images: Images, d: int, *, seed: int = 0) -> None:
        super().__init__((d, d // 4), "cpu", seed)
        self._rows = resized(images, d)
        self._covariance = (self._rows.mT @ self._rows / len(self._rows)).double()
        self.normalise()

    def gradient(self, X: Float[Tensor, "d k"], step: int) -> Float[Tensor, "d k"]:
        """-Z^T Z X / b."""
        Z = self._rows[drawn(self.seed, step, len(self._rows))]
        return Z.mT @ (Z @ X) * (-self.unit / BATCH)

    def loss(self, X: Float[Tensor, "d k"]) -> float:
        """The part of the variance of all images that is lost."""
        return 1 - float((X * (self._covariance @ X)).sum()) / len(X)


class ImagePairs(Problem):
    r"""$\min E\|z^\top X - y^\top\|^2 / 2$ over O(d), z and y two images of one digit."""

    deterministic = False

    def __init__(self, images: Images, d: int, *, seed: int = 0) -> None:
        super().__init__((d, d), "cpu", seed)
        self._rows, labels = resized(images, d), images.labels[:SAMPLES]
        g, mate = spawn(seed, "pairs"), torch.empty_like(labels)
        for label in range(10):
            of_label = (labels == label).nonzero()[:, 0]
            mate[of_label] = of_label[torch.randperm(len(of_label), generator=g)]
        self._mates = self._rows[mate]
        self._target = self._rows.mT @ self._mates / len(labels)
        self.normalise()

    def gradient(self, X: Float[Tensor, "d d"], step: int) -> Float[Tensor, "d d"]:
        """Z^T (Z X - Y) / b."""
        index = drawn(self.seed, step, len(self._rows))
        Z, Y = self._rows[index], self._mates[index]
        return Z.mT @ (Z @ X - Y) * (self.unit / BATCH)

    def loss(self, X: Float[Tensor, "d d"]) -> float:
        """The mean square over all pairs, over that of an image."""
        return 2 - 2 * float((X * self._target).sum()) / len(X)


def drawn(seed: int, step: int, number: int) -> Tensor:
    """The samples of a batch, with replacement; the same for every run."""
    return torch.randint(number, (BATCH,), generator=spawn(seed, "batch", step))
