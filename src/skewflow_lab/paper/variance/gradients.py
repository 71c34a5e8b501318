"""Points and gradients to sample from: synthetic ones, and those of a training run."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from skewflow.geometry import haar

from ...data import Images, load_images
from ...models.mlp import OrthogonalMLP, OrthogonalRegression, Training
from ...runs.seeds import spawn

REAL = ("mlp", "regression")
REGRESSION_ROWS = {"mnist": 196, "digits": 64}
"""Pixels of an image: MNIST is pooled to 14 x 14."""


@dataclass(frozen=True)
class Gradient:
    """A gradient G at X, and that of the previous training step, if it is from a training."""

    X: Float[Tensor, "d k"]
    G: Float[Tensor, "d k"]
    X_before: Float[Tensor, "d k"]
    G_before: Float[Tensor, "d k"]


def make_gradient(kind: str, d: int, seed: int, *, data: str, steps: int) -> Gradient:
    """A point and a gradient whose Omega is of the given kind.

    Args:
        kind: "gaussian", "heavy" (Student's t with 1.5 degrees of freedom), "lowrank" (rank 2), or
            the real ones: "mlp", "regression".
        d: Number of rows.
        seed: Seed of the matrix or of the training.
        data: Images of a real gradient.
        steps: Training steps before it.
    """
    if kind in REAL:
        return _real(kind, d, seed, load_images(data), steps)
    generator = spawn(seed, kind, d)
    X = haar(d, generator=generator, dtype=torch.float64)
    if kind == "lowrank":
        a, b = torch.randn(2, d, 1, generator=generator, dtype=torch.float64)
        G = a @ b.mT
    else:
        triangle = _student(d, 1.5, generator) if kind == "heavy" else _normal(d, generator)
        G = triangle.triu(1) @ X  # then G X^T - X G^T is skew with this triangle
    return Gradient(X, G, X, G)


def _normal(d: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    return torch.randn(d, d, generator=generator, dtype=torch.float64)


def _student(d: int, freedom: float, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """Entries with Student's t distribution, by Bailey's polar form."""
    u, v = torch.rand(2, d, d, generator=generator, dtype=torch.float64).clamp_min(1e-12)
    radius = (freedom * (u ** (-2 / freedom) - 1)).sqrt()
    return radius * torch.cos(2 * torch.pi * v)


def _real(kind: str, d: int, seed: int, images: Images, steps: int) -> Gradient:
    """The last two gradients of a training run, each on another batch."""
    model: nn.Module
    if kind == "regression":
        images = _pooled(images)
        model = OrthogonalRegression(d, seed)
    else:
        model = OrthogonalMLP(images.pixels[0].numel(), d, seed)
    training = Training(model, images, lr=1e-2, batch=128, seed=seed, block_size="dense")
    training.run(steps)
    found: list[Tensor] = []
    for _ in range(2):
        found = [*_point(training), *found]
        training.run(1)
    return Gradient(*found)


def _point(training: Training) -> tuple[Tensor, Tensor]:
    training.gradients()
    W = training.model.get_parameter("W")
    assert W.grad is not None
    return W.detach().double(), W.grad.double()


def _pooled(images: Images) -> Images:
    if images.name != "mnist":
        return images
    return replace(images, pixels=nn.functional.avg_pool2d(images.pixels, 2))
