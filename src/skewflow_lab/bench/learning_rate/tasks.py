"""What is trained, by name: orthogonal weights, their gradients in a fixed order, a final loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from skewflow.geometry import haar
from skewflow.optim import split_parameters

from ...data.images import Images, load_images
from ...models.mlp import OrthogonalMLP
from ...models.plainnet import PlainNet
from ...models.vit import ViT
from ...runs.seeds import spawn
from ..quality.copying import CopyingNet
from ..quality.matrix_problems import PCA
from ..quality.problem import Problem
from .matrix_tasks import BATCH, ImagePairs, ImagePCA, Rotation, drawn

DELAYS = {"copying": 20, "long-copying": 60}
"""Blanks of the copying tasks; their sequences have twenty symbols more."""
REST = 1e-3
"""Of the free weights of a network, by Adam, falling to zero with that of the others."""
HELD_OUT = 2000
"""Images that no batch has, for the final loss of a network; of few images a quarter."""


class Task(ABC):
    """One run: weights at their start, the same for every run of a name and a size."""

    weights: list[nn.Parameter]

    @abstractmethod
    def backward(self, step: int, left: float) -> None:
        """Give the weights their gradients; free weights move, by a rate times what is `left`."""

    @abstractmethod
    def loss(self) -> float:
        """After the last step."""


class MatrixTask(Task):
    """A problem of one matrix."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem.fresh()
        X = self._problem.start()
        self.weights = [nn.Parameter(X)]
        self._first = self._problem.loss(X.double())

    def backward(self, step: int, left: float) -> None:
        """The gradient of the problem."""
        (p,) = self.weights
        p.grad = self._problem.gradient(p.detach(), step)

    def loss(self) -> float:
        """With exact gradients what is left of the gap of the start, else the loss itself."""
        now, best = self._problem.loss(self.weights[0].detach().double()), self._problem.optimum
        if not self._problem.deterministic:
            return now
        assert best is not None
        return (now - best) / (self._first - best)


class Several(Task):
    """Tasks whose weights are stepped together; the loss is their mean."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self.weights = [W for task in tasks for W in task.weights]

    def backward(self, step: int, left: float) -> None:
        """The gradients of all tasks."""
        for task in self._tasks:
            task.backward(step, left)

    def loss(self) -> float:
        """The mean."""
        return sum(task.loss() for task in self._tasks) / len(self._tasks)


class SuiteTask(MatrixTask):
    """A problem of `bench quality`, whose loss is the problem's own."""

    def loss(self) -> float:
        """The loss."""
        return self._problem.loss(self.weights[0].detach().double())


class MaxMin(nn.Module):
    """The larger and the smaller one of two neighbours: keeps the lengths of gradients."""

    def forward(self, x: Tensor) -> Tensor:
        """Sort the halves."""
        a, b = x.chunk(2, dim=-1)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim=-1)


class Classifier(Task):
    """A network for images with orthogonal weights, whose other weights Adam moves."""

    def __init__(self, net: nn.Module, pixels: Tensor, labels: Tensor) -> None:
        held_out = min(HELD_OUT, len(pixels) // 4)
        self._x, self._y = pixels[:-held_out], labels[:-held_out]
        self._test = pixels[-held_out:], labels[-held_out:]
        self._net = net
        orthogonal, rest = split_parameters(net)
        self.weights = [p for _, p in orthogonal]
        self._rest = torch.optim.Adam([p for _, p in rest])

    def backward(self, step: int, left: float) -> None:
        """One batch; the free weights take their step."""
        index = drawn(0, step, len(self._y))
        loss = functional.cross_entropy(self._net(self._x[index]), self._y[index])
        self._net.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._rest.param_groups[0]["lr"] = REST * left
        self._rest.step()

    @torch.no_grad()
    def loss(self) -> float:
        """Of images held out."""
        x, y = self._test
        return float(functional.cross_entropy(self._net(x), y))


def layered(images: Images, d: int, layers: int, activation: type[nn.Module]) -> Classifier:
    """Square orthogonal layers between an input layer and a head."""
    g = spawn(0, "net", d)
    pixels = functional.avg_pool2d(images.pixels[:, None], 2).flatten(1)
    with _seeded(int(torch.randint(2**31, (), generator=g))):
        first, head = nn.Linear(pixels.shape[1], d), nn.Linear(d, 10)
        hidden = [nn.Linear(d, d) for _ in range(layers)]
    for layer in hidden:
        layer.weight = nn.Parameter(haar(d, special=True, generator=g))
        layer.orthogonal_names = ("weight",)  # type: ignore[assignment]
    steps = [module for layer in hidden for module in (layer, activation())]
    return Classifier(nn.Sequential(first, activation(), *steps, head), pixels, images.labels)


def mlp(images: Images, d: int) -> Classifier:
    """The network of the experiments on MNIST, with one orthogonal layer."""
    net = OrthogonalMLP(images.pixels[0].numel(), d, 0)
    net.orthogonal_names = ("W",)  # type: ignore[assignment]
    return Classifier(net, images.pixels.flatten(1), images.labels)


def convolutions(images: Images, d: int) -> Classifier:
    """PlainNet-8, with at most d output channels."""
    with _seeded(0):
        net = PlainNet(depth=8, width=max(2, d // 8))
    return Classifier(net, images.pixels[:, None].expand(-1, 3, -1, -1), images.labels)


def attention(images: Images, d: int) -> Classifier:
    """A vision transformer of two layers; at most 64 channels, those of a head."""
    with _seeded(0):
        net = ViT(depth=2, width=min(d, 64), size=images.pixels.shape[-1])
    return Classifier(net, images.pixels[:, None].expand(-1, 3, -1, -1), images.labels)


@contextmanager
def _seeded(number: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        yield


Start = Callable[[], Task]
"""Makes a task at its start."""
Make = Callable[[int, str], Start]
"""From a size and a set of images to tasks at their start."""
DRAWS = 4
"""Starts and orders of batches of a matrix to be found: one order favours a rate by chance."""


def _matrix(problem: Problem) -> Start:
    return lambda: MatrixTask(problem)


def _several(kind: type[ImagePCA | ImagePairs], d: int, data: str) -> Start:
    problems = [kind(_images(data), d, seed=seed) for seed in range(DRAWS)]
    return lambda: Several([MatrixTask(problem) for problem in problems])


def image_pairs(d: int, data: str) -> Start:
    """Pairs of images in one order of batches."""
    return _matrix(ImagePairs(_images(data), d))


def _classifier(make: Callable[..., Classifier], d: int, data: str, *args: Any) -> Start:
    task = make(_images(data), d, *args)
    return lambda: deepcopy(task)


def _copying(delay: int, d: int, data: str) -> Start:
    return _matrix(CopyingNet(d, delay, BATCH // 2, device="cpu"))


@lru_cache(maxsize=1)
def _images(name: str) -> Images:
    return load_images(name)


TASKS: dict[str, Make] = {
    "rotation": lambda d, data: _matrix(Rotation(d)),
    "pca": lambda d, data: _matrix(PCA(d, d // 4, device="cpu")),
    "image-pca": partial(_several, ImagePCA),
    "image-pairs": partial(_several, ImagePairs),
    "tanh-net": lambda d, data: _classifier(layered, d, data, 4, nn.Tanh),
    "maxmin-net": lambda d, data: _classifier(layered, d, data, 2, MaxMin),
    **{name: partial(_copying, delay) for name, delay in DELAYS.items()},
}
NETWORKS: dict[str, Make] = {
    "mlp": partial(_classifier, mlp),
    "tanh-net": TASKS["tanh-net"],
    "maxmin-net": TASKS["maxmin-net"],
    "plainnet-8": partial(_classifier, convolutions),
    "vit": partial(_classifier, attention),
}
"""Networks that classify images; beside them `bench default-rate` takes the suite's problems."""
DETERMINISTIC = ("rotation", "pca")
RECURRENT = {name: delay + 20 for name, delay in DELAYS.items()}
"""Recurrent nets, and the lengths of their sequences."""
LARGEST = {"copying": 256, "long-copying": 64}
"""Most rows of the matrices of recurrent nets."""
