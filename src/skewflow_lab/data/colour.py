"""Colour images on the training device, and batches of them, flipped and shifted there."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from ..runs.files import RunError
from ..runs.seeds import spawn
from .cifar10 import CHECKSUMS, FOLDER, load_cifar10
from .files import data_folder
from .images import load_digits_part

Colours = Literal["cifar10", "digits"]
"""CIFAR-10, or scikit-learn's digits enlarged to its size."""

PADDING = 4


def default_colours() -> Colours:
    """The name "cifar10" if all its files lie in $SKEWFLOW_DATA, else "digits"."""
    found = all((data_folder() / FOLDER / name).exists() for name in CHECKSUMS)
    return "cifar10" if found else "digits"


def load_colours(name: Colours, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
    """Pixels (n, 3, 32, 32) and labels (n,) as bytes.

    Raises:
        RunError: If the set is not known, or a file is missing or damaged.
    """
    if name == "cifar10":
        return load_cifar10(split)
    if name != "digits":
        raise RunError(f"`data` must be cifar10 or digits: got {name!r}.")
    digits = load_digits_part(split)
    pixels = (digits.pixels * 255).byte()
    large = pixels.repeat_interleave(4, -1).repeat_interleave(4, -2)
    return large[:, None].expand(-1, 3, -1, -1).contiguous(), digits.labels.byte()


@dataclass(frozen=True)
class ColourSet:
    """Images of one split, on a device, normalised when they are read.

    Args:
        pixels: Bytes, with `PADDING` zeros on each side.
        labels: Classes.
        mean: Mean of each channel of the training images, whose pixels lie between 0 and 1.
        std: Standard deviation of each channel.
    """

    pixels: UInt8[Tensor, "n 3 h w"]
    labels: Int[Tensor, "n"]
    mean: Float[Tensor, "3"]
    std: Float[Tensor, "3"]

    @classmethod
    def of(
        cls, pixels: Tensor, labels: Tensor, like: "ColourSet | None", device: torch.device
    ) -> "ColourSet":
        """Images on their device, normalised by the statistics of `like`, or by their own."""
        if like is None:
            flat = pixels.float().div_(255).transpose(0, 1).flatten(1)
            mean, std = flat.mean(1).to(device), flat.std(1).to(device)
        else:
            mean, std = like.mean, like.std
        padded = torch.nn.functional.pad(pixels, (PADDING,) * 4)
        return cls(padded.to(device), labels.long().to(device), mean, std)

    def __len__(self) -> int:
        return len(self.labels)

    def plain(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images in order, neither flipped nor shifted."""
        inside = self.pixels[..., PADDING:-PADDING, PADDING:-PADDING]
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield self._normalised(inside[part]), self.labels[part]

    def shuffled(self, size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of full batches: each image flipped or not, and shifted by up to `PADDING`.

        The draws of an epoch depend only on seed and epoch, so that a resumed run draws the same.
        """
        device, n = self.pixels.device, len(self)
        generator = spawn(seed, "epoch", epoch)
        order = torch.randperm(n, generator=generator).to(device)
        shift = torch.randint(2 * PADDING + 1, (2, n, 1), generator=generator).to(device)
        flip = torch.randint(2, (n, 1), generator=generator).bool().to(device)
        side = torch.arange(self.pixels.shape[-1] - 2 * PADDING, device=device)
        rows = shift[0] + side
        columns = shift[1] + torch.where(flip, side.flip(0), side)
        channel = torch.arange(3, device=device)[None, :, None, None]
        for start in range(0, n - size + 1, size):
            index = order[start : start + size]
            i, j = rows[index][:, None, :, None], columns[index][:, None, None, :]
            drawn = self.pixels[index[:, None, None, None], channel, i, j]
            yield self._normalised(drawn), self.labels[index]

    def _normalised(self, pixels: Tensor) -> Float[Tensor, "b 3 h w"]:
        mean, std = self.mean[:, None, None], self.std[:, None, None]
        return (pixels.float() / 255 - mean) / std
