"""What is trained, by name: orthogonal weights, their gradients in a fixed order, a final loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from skewflow.geometry import haar

from ...data.images import Images, load_images
from ...runs.seeds import spawn
from ..quality.copying import CopyingNet
from ..quality.matrix_problems import PCA
from ..quality.problem import Problem
from .matrix_tasks import BATCH, ImagePairs, ImagePCA, Rotation, drawn

DELAY = 20
"""Blanks of the copying task; its sequences have twenty symbols more."""
LENGTH = DELAY + 20
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


class MaxMin(nn.Module):
    """The larger and the smaller one of two neighbours: keeps the lengths of gradients."""

    def forward(self, x: Tensor) -> Tensor:
        """Sort the halves."""
        a, b = x.chunk(2, dim=-1)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim=-1)


class Classifier(Task):
    """Square orthogonal layers between an input layer and a head that Adam moves."""

    def __init__(self, images: Images, d: int, layers: int, activation: type[nn.Module]) -> None:
        g = spawn(0, "net", d)
        number = int(torch.randint(2**31, (), generator=g))
        pixels = functional.avg_pool2d(images.pixels[:, None], 2).flatten(1)
        held_out = min(HELD_OUT, len(pixels) // 4)
        self._x, self._y = pixels[:-held_out], images.labels[:-held_out]
        self._test = pixels[-held_out:], images.labels[-held_out:]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            first, head = nn.Linear(pixels.shape[1], d), nn.Linear(d, 10)
            hidden = [nn.Linear(d, d) for _ in range(layers)]
        steps = [module for layer in hidden for module in (layer, activation())]
        self._net = nn.Sequential(first, activation(), *steps, head)
        self.weights = [nn.Parameter(haar(d, special=True, generator=g)) for _ in hidden]
        for layer, weight in zip(hidden, self.weights, strict=True):
            layer.weight = weight
        own = {id(p) for p in self.weights}
        self._rest = torch.optim.Adam([p for p in self._net.parameters() if id(p) not in own])

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


Make = Callable[[int, str], Callable[[], Task]]
"""From a size and a set of images to tasks at their start."""


def _matrix(problem: Problem) -> Callable[[], Task]:
    return lambda: MatrixTask(problem)


def _classifier(d: int, data: str, *args: Any) -> Callable[[], Task]:
    task = Classifier(_images(data), d, *args)
    return lambda: deepcopy(task)


@lru_cache(maxsize=1)
def _images(name: str) -> Images:
    return load_images(name)


TASKS: dict[str, Make] = {
    "rotation": lambda d, data: _matrix(Rotation(d)),
    "pca": lambda d, data: _matrix(PCA(d, d // 4, device="cpu")),
    "image-pca": lambda d, data: _matrix(ImagePCA(_images(data), d)),
    "image-pairs": lambda d, data: _matrix(ImagePairs(_images(data), d)),
    "tanh-net": lambda d, data: _classifier(d, data, 4, nn.Tanh),
    "maxmin-net": lambda d, data: _classifier(d, data, 2, MaxMin),
    "copying": lambda d, data: _matrix(CopyingNet(d, DELAY, BATCH // 2, device="cpu")),
}
DETERMINISTIC = ("rotation", "pca")
RECURRENT = ("copying",)
