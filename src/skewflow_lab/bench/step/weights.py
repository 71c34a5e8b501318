"""The weights that a benchmark steps: one matrix, or all convolutions of a network."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from skewflow.nn import orthogonal_

Shape = tuple[int, ...]


def plainnet110() -> list[Shape]:
    """The 109 convolutions of PlainNet-110 for CIFAR-10 (Sec. 6.2).

    It is ResNet-110 without its shortcuts: a first convolution, then three stages of 18 blocks of
    two convolutions with 16, 32 and 64 channels, all 3 x 3.

    Example:
        >>> len(plainnet110()), plainnet110()[0], plainnet110()[-1]
        (109, (16, 3, 3, 3), (64, 64, 3, 3))
    """
    shapes: list[Shape] = [(16, 3, 3, 3)]
    channels = 16
    for width in (16, 32, 64):
        for _ in range(36):
            shapes.append((width, channels, 3, 3))
            channels = width
    return shapes


SETS: dict[str, Callable[[], list[Shape]]] = {"plainnet110": plainnet110}
"""Shapes that are stepped together, by name."""


def haar_weights(
    shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Haar weights of these shapes and Gaussian gradients, the same at every call.

    The gradients have a spectral norm of about 2 whatever the size, so a step of length 1e-3 turns
    the weight by a few thousandths of a radian, as training does: the cost of the matrix
    exponential grows with that angle.
    """
    generator = torch.Generator(device).manual_seed(0)
    weights, gradients = [], []
    for shape in shapes:
        X = torch.empty(shape, dtype=dtype, device=device)
        weights.append(orthogonal_(X, generator=generator))
        G = torch.randn(shape, generator=generator, device=device)
        rows = max(shape[0], G.numel() // shape[0])
        gradients.append((G / rows**0.5).to(dtype))
    return weights, gradients


def parameters(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[nn.Parameter]:
    """New parameters with copies of the gradients, because some libraries write to both."""
    params = [nn.Parameter(X.clone()) for X in weights]
    for p, G in zip(params, gradients, strict=True):
        p.grad = G.clone()
    return params
