"""Images of digits: MNIST where it is at hand, else the small set that scikit-learn ships."""

import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .files import RunError

NAMES = ("mnist", "digits")
SOURCES = {
    "mnist": "MNIST, 60,000 training images",
    "digits": "scikit-learn's digits, 1,797 images of 8 x 8 (in the place of MNIST)",
}


@dataclass(frozen=True)
class Images:
    """Training images between 0 and 1, and their classes."""

    name: str
    pixels: Float[Tensor, "n h w"]
    labels: Int[Tensor, "n"]

    def batch(
        self, size: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "b p"], Int[Tensor, "b"]]:
        """Images drawn with replacement, each as one row."""
        index = torch.randint(len(self.labels), (size,), generator=generator)
        return self.pixels[index].flatten(1), self.labels[index]


def default_images() -> str:
    """The name "mnist" if its files lie in $SKEWFLOW_DATA/mnist, else "digits"."""
    return "mnist" if _mnist("train-images-idx3-ubyte").exists() else "digits"


def load_images(name: str) -> Images:
    """Load a set by name.

    Raises:
        RunError: If it is not known, or its files are not there.
    """
    if name not in NAMES:
        raise RunError(f"`data` must be one of {', '.join(NAMES)}: got {name!r}.")
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = torch.from_numpy(digits.images).float() / 16
        return Images(name, pixels, torch.from_numpy(digits.target).long())
    pixels = _idx(_mnist("train-images-idx3-ubyte"), 3).float() / 255
    return Images(name, pixels, _idx(_mnist("train-labels-idx1-ubyte"), 1).long())


def _mnist(file: str) -> Path:
    return Path(os.environ.get("SKEWFLOW_DATA", "data")) / "mnist" / f"{file}.gz"


def _idx(path: Path, ndim: int) -> Tensor:
    """A file of unsigned bytes in the idx format: magic number, sizes, entries."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise RunError(
            f"cannot read {path}: {error}. Set SKEWFLOW_DATA to the folder that holds mnist/, or "
            "use --data digits."
        ) from error
    sizes = np.frombuffer(raw, ">u4", ndim, 4).astype(int)
    if raw[:4] != bytes([0, 0, 8, ndim]) or len(raw) != 4 + 4 * ndim + sizes.prod():
        raise RunError(f"{path} must be an idx file of {ndim} dimensions. Fetch it again.")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim).reshape(sizes).copy())
