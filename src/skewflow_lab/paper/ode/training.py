"""Images as vectors or as sequences of pixels, and the training of a reader of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from skewflow.nn import orthogonality_error
from skewflow.optim import FlowAdam, split_parameters

from ...data import Digits, load_digits_part, load_images
from ...models.resumable import Resumable
from ...runs.files import RunError
from ...runs.seeds import spawn
from .models import ORTHOGONAL, Method, Reader, gradient_norms

Task = Literal["images", "pixels"]
"""Images as vectors, or read pixel by pixel."""
CLASSES = 10


class Data:
    """Batches of a task, each of shape (l, b, i) with a sequence of l vectors for each image."""

    def __init__(self, task: Task, data: Digits, pool: int) -> None:
        digits, self._task = data == "digits", task
        parts = [
            load_digits_part(split) if digits else load_images("mnist", split)
            for split in ("train", "test")
        ]
        if parts[0].pixels.shape[-1] % pool:
            side = parts[0].pixels.shape[-1]
            raise RunError(f"`pool` must divide the side of the images, {side}: got {pool}.")
        self._pixels, self._test_pixels = (
            functional.avg_pool2d(part.pixels, pool).flatten(1) for part in parts
        )
        self._labels, self._test_labels = (part.labels for part in parts)
        self.inputs = self._pixels.shape[1] if task == "images" else 1
        self.length = 1 if task == "images" else self._pixels.shape[1]

    def batch(
        self, size: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "l b i"], Int[Tensor, "b"]]:
        """Training images drawn with replacement, and their classes."""
        index = torch.randint(len(self._labels), (size,), generator=generator)
        return self._shaped(self._pixels[index]), self._labels[index]

    @torch.no_grad()
    def accuracy(self, net: nn.Module) -> float:
        """The fraction of all test images that a net classifies correctly."""
        parts = torch.split(self._test_pixels, 2000)
        found = torch.cat([net(self._shaped(x)).argmax(-1) for x in parts])
        return float((found == self._test_labels).float().mean())

    def _shaped(self, pixels: Float[Tensor, "b p"]) -> Float[Tensor, "l b i"]:
        return pixels[None] if self._task == "images" else pixels.mT[..., None]


class Training(Resumable):
    """A reader in training; what step n draws depends on the seed and n only.

    `FlowAdam` steps the weight of an `OrthogonalODE`, and Adam all other parameters, both at one
    learning rate, which falls linearly to 0 in the second half.
    """

    def __init__(
        self,
        data: Data,
        method: Method,
        *,
        hidden: int,
        num_steps: int,
        time: float,
        lr: float,
        batch: int,
        iterations: int,
        seed: int,
    ) -> None:
        self.data, self.lr, self.batch = data, lr, batch
        self.iterations, self.seed, self.step = iterations, seed, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net: Reader = Reader(
                method,
                data.inputs,
                hidden,
                num_steps=num_steps,
                time=time,
                classes=CLASSES,
                driven=data.length > 1,
            )
        free = list(self.net.named_parameters())
        weights: list[tuple[str, nn.Parameter]] = []
        if method in ORTHOGONAL:
            weights, free = split_parameters(self.net)
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam([p for _, p in free], lr=lr),
            *([FlowAdam(weights, lr=lr, seed=seed)] if weights else []),
        ]

    def run(self, num_steps: int) -> float:
        """Take steps; returns their mean loss."""
        total = 0.0
        for _ in range(num_steps):
            factor = min(1.0, 2 * (1 - self.step / self.iterations))
            x, y = self.data.batch(self.batch, spawn(self.seed, "batch", self.step))
            with seeded(self.seed, "planes", self.step):
                loss = functional.cross_entropy(self.net(x), y)
            self.net.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = factor * self.lr
                optimizer.step()
            total += loss.item()
            self.step += 1
        return total / num_steps

    def accuracy(self) -> float:
        """The accuracy on the test images."""
        with seeded(self.seed, "planes", "test"):
            return self.data.accuracy(self.net)

    def error(self) -> float | None:
        r"""$\|W^\top W - I\|_F / \sqrt d$ of W at the end of the flow of a batch, if it flows."""
        x, _ = self.data.batch(self.batch, spawn(self.seed, "error"))
        with torch.no_grad(), seeded(self.seed, "planes", "error"):
            _, W = self.net.end(x)
        return None if W is None else orthogonality_error(W)

    def gradient_norms(self, depths: tuple[int, ...]) -> list[float]:
        """`gradient_norms` of the first entry of a batch."""
        x, _ = self.data.batch(self.batch, spawn(self.seed, "gradients"))
        with seeded(self.seed, "planes", "gradients"):
            return gradient_norms(self.net.flow, self.net.stem(x[0]), depths, self.seed)


@contextmanager
def seeded(seed: int, *path: str | int) -> Iterator[None]:
    """Draws from torch's global generator, as the stochastic equation's, that depend on a name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spawn(seed, *path).initial_seed())
        yield
