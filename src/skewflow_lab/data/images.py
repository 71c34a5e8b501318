"""Sets of images by name."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..runs.files import RunError
from .cifar10 import load_cifar10
from .mnist import has_mnist, load_mnist

Digits = Literal["mnist", "digits"]
"""The sets of images of the ten digits; each experiment on digits takes either."""

DIGITS_CUT = 1500
"""Index that separates the digits into training and test images."""
NAMES = ("mnist", "cifar10", "digits")
SOURCES = {
    "mnist": "MNIST, 60,000 training images",
    "cifar10": "CIFAR-10, 50,000 training images",
    "digits": "scikit-learn's digits, 1,797 images of 8 x 8 (instead of MNIST)",
}


@dataclass(frozen=True)
class Images:
    """Images between 0 and 1, (h, w) or (channel, h, w) each, and their classes."""

    name: str
    pixels: Float[Tensor, "n *shape"]
    labels: Int[Tensor, "n"]

    def batch(
        self, size: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "b p"], Int[Tensor, "b"]]:
        """Images drawn with replacement, each as one row."""
        index = torch.randint(len(self.labels), (size,), generator=generator)
        return self.pixels[index].flatten(1), self.labels[index]


def default_images() -> Digits:
    """The name "mnist" if its files lie in $SKEWFLOW_DATA/mnist, else "digits"."""
    return "mnist" if has_mnist() else "digits"


def load_images(name: str, split: Literal["train", "test"] = "train") -> Images:
    """Load a set by name, from $SKEWFLOW_DATA or, if its files are not there, from the network.

    Raises:
        RunError: If the set is not known, or a file is missing or damaged.
    """
    if name not in NAMES:
        raise RunError(f"`data` must be one of {', '.join(NAMES)}: got {name!r}.")
    if split not in ("train", "test"):
        raise RunError(f"`split` must be 'train' or 'test': got {split!r}.")
    if name == "digits":
        return _digits(split)
    pixels, labels = load_mnist(split) if name == "mnist" else load_cifar10(split)
    return Images(name, pixels.float() / 255, labels.long())


def load_digits_part(split: Literal["train", "test"]) -> Images:
    """Training or test images of scikit-learn's digits: the last 297 are for tests."""
    whole = load_images("digits")
    part = slice(None, DIGITS_CUT) if split == "train" else slice(DIGITS_CUT, None)
    return Images(whole.name, whole.pixels[part], whole.labels[part])


def _digits(split: str) -> Images:
    if split == "test":
        raise RunError("`split` must be 'train' for digits: they come in one set. Use mnist.")
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = torch.from_numpy(digits.images).float() / 16
    return Images("digits", pixels, torch.from_numpy(digits.target).long())
