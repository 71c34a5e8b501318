"""Tasks that need a long memory: copying symbols, and images read pixel by pixel."""

import math
from typing import Literal, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..runs.files import RunError
from ..runs.seeds import spawn
from . import Digits, Images, load_digits_part, load_images

Order = Literal["sequential", "permuted"]
NUM_SYMBOLS, NUM_COPIED = 8, 10


class Task(Protocol):
    """Training data of a recurrent net; batch t depends on seed and t only."""

    inputs: int
    classes: int
    length: int
    num_batches: int
    """Number of batches between two measurements."""

    def batch(self, step: int) -> tuple[Float[Tensor, "l b i"], Int[Tensor, "..."]]:
        """The inputs of all steps, and the targets."""

    def loss(
        self, net: nn.Module, x: Float[Tensor, "l b i"], y: Int[Tensor, "..."]
    ) -> Float[Tensor, ""]:
        """The mean cross entropy."""

    def accuracy(self, net: nn.Module) -> float | None:
        """The fraction of the test images that the net classifies correctly; None without any."""


class Copying:
    """The net reads ten symbols, `delay` blanks and a marker, and then repeats the ten symbols.

    The task is that of Arjovsky, Shah and Bengio, ICML 2016. Every batch is new, so the training
    loss is a test loss. Not in the paper.

    Args:
        delay: T.
        batch: Sequences in a batch.
        seed: Seed of the symbols.
        device: Device of the batches.

    Example:
        >>> x, y = Copying(3, batch=1, seed=0, device="cpu").batch(0)
        >>> x[:, 0].argmax(-1).tolist()
        [1, 8, 3, 8, 3, 6, 5, 3, 2, 3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        >>> y[:, 0].tolist()
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 8, 3, 8, 3, 6, 5, 3, 2, 3]
    """

    inputs = NUM_SYMBOLS + 2  # the blank is number 0, and the marker the last one
    classes = NUM_SYMBOLS + 1
    num_batches = 20

    def __init__(self, delay: int, *, batch: int, seed: int, device: torch.device | str) -> None:
        self.delay, self.length = delay, delay + 2 * NUM_COPIED
        self._batch, self._seed, self._device = batch, seed, device

    @property
    def baseline(self) -> float:
        """The loss of a net that answers blanks, then guesses: 10 ln 8 / (T + 20)."""
        return NUM_COPIED * math.log(NUM_SYMBOLS) / self.length

    def batch(self, step: int) -> tuple[Float[Tensor, "l b i"], Int[Tensor, "l b"]]:
        """One-hot symbols, and the target symbols."""
        shape = (NUM_COPIED, self._batch)
        generator = spawn(self._seed, "copying", step)
        symbols = torch.randint(1, NUM_SYMBOLS + 1, shape, generator=generator).to(self._device)
        x = symbols.new_zeros(self.length, self._batch)
        y = torch.zeros_like(x)
        x[:NUM_COPIED] = y[-NUM_COPIED:] = symbols
        x[NUM_COPIED + self.delay] = NUM_SYMBOLS + 1
        return functional.one_hot(x, self.inputs).float(), y

    def loss(
        self, net: nn.Module, x: Float[Tensor, "l b i"], y: Int[Tensor, "l b"]
    ) -> Float[Tensor, ""]:
        """The mean cross entropy over all steps."""
        return functional.cross_entropy(net(x).flatten(0, 1), y.flatten())

    def accuracy(self, net: nn.Module) -> None:
        """Always None: this task has no test images."""


class Pixels:
    """Images read pixel by pixel, row by row or in a random order that is the same for all.

    The task is that of Le, Jaitly and Hinton, 2015. scikit-learn's digits come in one set: the last
    297 are the test images. Not in the paper.

    Args:
        data: "mnist" or "digits".
        order: Order of the pixels.
        batch: Images in a batch; an incomplete batch at the end of an epoch is not used.
        seed: Seed of the permutation of the pixels and of the order of the images.
        device: Device of the images.
        images: Number of training images, the first ones of the set; all when omitted.
        pool: Side of the squares of pixels that are replaced by their mean.
        held_out: Measure on the last tenth of the training images, and train on the others.

    Raises:
        RunError: If a batch has more images than the set, or the squares do not divide an image.
    """

    inputs, classes = 1, 10

    def __init__(
        self,
        data: Digits,
        order: Order,
        *,
        batch: int,
        seed: int,
        device: torch.device | str,
        images: int | None = None,
        pool: int = 1,
        held_out: bool = False,
    ) -> None:
        train, test = (_pooled(part, pool) for part in _split(data))
        train = _part(train, slice(None, images))
        if held_out:
            cut = len(train.labels) * 9 // 10
            train, test = _part(train, slice(None, cut)), _part(train, slice(cut, None))
        if batch > (num := len(train.labels)):
            raise RunError(f"`batch` must be at most the {num} training images: got {batch}.")
        self.length = train.pixels[0].numel()
        places = torch.arange(self.length)
        if order == "permuted":
            places = torch.randperm(self.length, generator=spawn(seed, "pixels"))
        self._train = [(train.pixels.flatten(1)[:, places]).to(device), train.labels.to(device)]
        self._test = [(test.pixels.flatten(1)[:, places]).to(device), test.labels.to(device)]
        self._batch, self._seed = batch, seed
        self.num_batches = num // batch
        self._epoch = -1

    def batch(self, step: int) -> tuple[Float[Tensor, "l b 1"], Int[Tensor, "b"]]:
        """The pixels of one batch, and the classes of its images."""
        epoch, place = divmod(step, self.num_batches)
        if epoch != self._epoch:
            generator = spawn(self._seed, "epoch", epoch)
            pixels, labels = self._train
            self._epoch = epoch
            self._order = torch.randperm(len(labels), generator=generator).to(labels.device)
        index = self._order[place * self._batch : (place + 1) * self._batch]
        pixels, labels = self._train
        return pixels[index].mT.unsqueeze(-1), labels[index]

    def loss(
        self, net: nn.Module, x: Float[Tensor, "l b 1"], y: Int[Tensor, "b"]
    ) -> Float[Tensor, ""]:
        """The mean cross entropy of the answers after the last pixel."""
        return functional.cross_entropy(net(x, last=True), y)

    @torch.no_grad()
    def accuracy(self, net: nn.Module) -> float:
        """The accuracy on all test images."""
        pixels, labels = self._test
        right = 0
        for first in range(0, len(labels), 500):
            said = net(pixels[first : first + 500].mT.unsqueeze(-1), last=True).argmax(-1)
            right += int((said == labels[first : first + 500]).sum())
        return right / len(labels)


def _pooled(images: Images, pool: int) -> Images:
    side = images.pixels.shape[-1]
    if side % pool:
        raise RunError(f"`pool` must divide the side of the images, {side}: got {pool}.")
    return Images(images.name, functional.avg_pool2d(images.pixels, pool), images.labels)


def _part(images: Images, part: slice) -> Images:
    return Images(images.name, images.pixels[part], images.labels[part])


def _split(data: Digits) -> tuple[Images, Images]:
    if data == "mnist":
        return load_images("mnist"), load_images("mnist", "test")
    return load_digits_part("train"), load_digits_part("test")
