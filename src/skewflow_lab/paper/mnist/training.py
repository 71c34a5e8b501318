"""One training of the two-layer network on MNIST, epoch by epoch."""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from skewflow.geometry.matrices import as_matrices
from skewflow.nn import OrthogonalLinear, orthogonal_
from skewflow.optim import split_parameters

from ...data import Digits, Images, load_images
from ...models.methods import Method, largest_error, make_optimizers, rate_factor
from ...runs.seeds import spawn

MOMENTUM = 0.9

Trained = Method | Literal["default", "geoopt"]
"""A way of training; "default" is "vanilla" from torch's initialisation."""
Layers = Literal["both", "second"]
"""The hidden layers whose weights are kept orthogonal."""


@dataclass(frozen=True)
class Split:
    """Images to train on and images to measure on, one image a row."""

    train: tuple[Float[Tensor, "n p"], Int[Tensor, " n"]]
    measured: tuple[Float[Tensor, "m p"], Int[Tensor, " m"]]

    @property
    def num_pixels(self) -> int:
        """The number of inputs of the network."""
        return self.train[0].shape[1]


@lru_cache(maxsize=2)
def load_split(
    data: Digits, kind: Literal["validation", "test"], num_images: int, device: str
) -> Split:
    """All training images and the test set; or five sixths and one sixth of the training images.

    The second split cuts a random order that is always the same. scikit-learn's digits have no test
    set, so a sixth of them is held out in the same way. Pixels are shifted and scaled to mean 0 and
    variance 1 over the training images.

    Args:
        data: The set of images.
        kind: The images to measure on.
        num_images: Largest number of training images.
        device: Device of the images.
    """
    train = load_images(data)
    if data == "digits":
        train, test = _parted(train, "test")
    else:
        test = load_images(data, "test")
    train = Images(data, train.pixels[:num_images], train.labels[:num_images])
    if kind == "validation":
        train, test = _parted(train, "validation")
    std, mean = torch.std_mean(train.pixels)
    (x, y), (u, v) = (
        (((part.pixels - mean) / std).flatten(1).to(device), part.labels.to(device))
        for part in (train, test)
    )
    return Split((x, y), (u, v))


def _parted(images: Images, name: str) -> tuple[Images, Images]:
    order = torch.randperm(len(images.labels), generator=spawn(0, "split", name))
    cut = len(order) * 5 // 6
    first, second = (
        Images(images.name, images.pixels[part], images.labels[part])
        for part in (order[:cut], order[cut:])
    )
    return first, second


def make_network(
    num_pixels: int, width: int, layers: Layers, seed: int, *, default: bool = False
) -> nn.Sequential:
    """Two hidden layers of tanh and a free linear head (Sec. 6.2).

    Both hidden weights are initialised as orthogonal, at 784 pixels and width 100 in ST(784, 100)
    and O(100), and those of `layers` are marked so that they stay orthogonal. With `default` all
    weights and biases have torch's initialisation of `nn.Linear`.
    """
    first = (OrthogonalLinear if layers == "both" else nn.Linear)(num_pixels, width)
    second, head = OrthogonalLinear(width, width), nn.Linear(width, 10)
    generator = spawn(seed, "weights")
    with torch.no_grad():
        if default:
            for layer in (first, second, head):
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)
            return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), head)
        for layer in (first, second):
            orthogonal_(layer.weight, generator=generator)
            layer.bias.zero_()
        head.weight.normal_(0.0, width**-0.5, generator=generator)
        head.bias.zero_()
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), head)


class Geoopt:
    """RiemannianSGD of geoopt on the marked weights as tall matrices.

    geoopt supports only tall matrices, so each weight has a separate point, which is set before a
    step and copied back after it. The metric is the Euclidean one with its QR retraction, because
    the default one solves a system of d equations at each step.
    """

    def __init__(self, weights: Sequence[Tensor], lr: float, momentum: float) -> None:
        with warnings.catch_warnings():
            # geoopt calls torch.jit.script when it is imported, which torch advises against.
            warnings.simplefilter("ignore", DeprecationWarning)
            from geoopt import ManifoldParameter, Stiefel
            from geoopt.optim import RiemannianSGD

        self.weights = weights
        self.points = [
            ManifoldParameter(as_matrices(p.detach())[0].clone(), manifold=Stiefel(canonical=False))
            for p in weights
        ]
        self.inner: torch.optim.Optimizer = RiemannianSGD(self.points, lr=lr, momentum=momentum)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of points, with their learning rates."""
        return self.inner.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """Step all weights."""
        for p, point in zip(self.weights, self.points, strict=True):
            assert p.grad is not None
            point.copy_(as_matrices(p)[0])
            point.grad = as_matrices(p.grad)[0].clone()  # geoopt writes to gradients
        self.inner.step()
        for p, point in zip(self.weights, self.points, strict=True):
            as_matrices(p)[0].copy_(point)

    def state_dict(self) -> dict[str, Any]:
        """The state of geoopt's optimiser, without the points, which are in the model."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.inner.load_state_dict(state)


def optimizers_of(
    model: nn.Module, method: Trained, lr: float, scale: float, seed: int
) -> list[torch.optim.Optimizer | Geoopt]:
    """The optimisers of `make_optimizers`, or geoopt's.

    The learning rate of the marked weights is `scale` times `lr`, for vanilla SGD too, so that a
    search over both is equally wide for all methods.
    """
    marked, rest = split_parameters(model)
    weights = [p for _, p in marked]
    if method == "geoopt":
        sgd = torch.optim.SGD(rest, lr=lr, momentum=MOMENTUM)
        return [Geoopt(weights, scale * lr, MOMENTUM), sgd]
    if method == "vanilla" or method == "default":  # mypy narrows by == only
        groups: list[dict[str, Any]] = [{"params": weights, "lr": scale * lr}]
        groups.append({"params": [p for _, p in rest]})
        return [torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM)]
    return [
        *make_optimizers(
            model, method, lr=lr, orthogonal_lr=scale * lr, momentum=MOMENTUM, seed=seed
        )
    ]


class Training:
    """The training of a network; the draws of epoch t depend on the seed and t only.

    Args:
        split: The images.
        method: The method for the hidden weights.
        width: Units of each hidden layer.
        layers: The layers whose weights the method keeps orthogonal.
        lr: Learning rate of the other weights.
        scale: Learning rate of the hidden weights over `lr`.
        batch: Images in a batch.
        epochs: Number of epochs of the whole training.
        seed: Seed of the weights, the order of the images and the blocks; it gives all methods but
            "default" the same weights.
    """

    def __init__(
        self,
        split: Split,
        method: Trained,
        *,
        width: int,
        layers: Layers,
        lr: float,
        scale: float,
        batch: int,
        epochs: int,
        seed: int,
    ) -> None:
        self.split, self.batch, self.epochs, self.seed = split, batch, epochs, seed
        self.model = make_network(
            split.num_pixels, width, layers, seed, default=method == "default"
        )
        self.model.to(split.train[0].device)
        self.optimizers = optimizers_of(self.model, method, lr, scale, seed)
        self._lrs = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.rows: list[dict[str, Any]] = []
        self.seconds: list[float] = []
        self.stopped = False
        """Whether the loss became NaN or infinite; the weights are those before that step."""

    @property
    def done(self) -> bool:
        """Whether all epochs are finished."""
        return len(self.rows) == self.epochs

    def epoch(self) -> dict[str, Any]:
        """Train an epoch, and measure.

        Returns:
            Mean loss and accuracy on the training batches during the epoch, accuracy on the other
            images after it, and the largest error of the hidden weights. A training that has
            stopped repeats its last numbers with the loss None.
        """
        began = time.perf_counter()
        number = len(self.rows)
        factor = rate_factor(number, self.epochs)
        for optimizer, lrs in zip(self.optimizers, self._lrs, strict=True):
            for group, lr in zip(optimizer.param_groups, lrs, strict=True):
                group["lr"] = lr * factor
        x, y = self.split.train
        order = torch.randperm(len(y), generator=spawn(self.seed, "order", number)).to(x.device)
        total, right, seen = 0.0, torch.zeros((), dtype=torch.int64, device=x.device), 0
        for index in torch.split(order, self.batch):
            if self.stopped:
                break
            logits = self.model(x[index])
            loss = nn.functional.cross_entropy(logits, y[index])
            value = loss.item()
            if not math.isfinite(value):
                self.stopped = True
                break
            self.model.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in self.optimizers:
                optimizer.step()
            total, seen = total + value * len(index), seen + len(index)
            right += (logits.detach().argmax(-1) == y[index]).sum()
        train = 100 * int(right) / seen if seen else self.rows[-1]["train"]
        row = {
            "epoch": number + 1,
            "loss": None if self.stopped else total / seen,
            "train": train,
            "measured": self._accuracy(),
            "error": largest_error(self.model),
        }
        self.seconds.append(time.perf_counter() - began)
        self.rows.append(row)
        return row

    @torch.no_grad()
    def _accuracy(self) -> float:
        """The accuracy on the held-out images in per cent."""
        x, y = self.split.measured
        return 100 * int((self.model(x).argmax(-1) == y).sum()) / len(y)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "rows": self.rows,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.rows, self.seconds = state["rows"], state["seconds"]
        self.stopped = state["stopped"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
