"""One tolerance table, and the random matrices and oracles that the tests share."""

from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

EPS = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
}
"""The only tolerances: a test that needs another passes `factor=` and says why."""

STIEFEL_SHAPES = [(1, 1), (2, 2), (5, 5), (5, 1), (6, 4), (7, 3), (33, 17)]
"""Shapes (d, k): tiny, square, a sphere, less and more than half full, odd."""


def half(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every second entry of the product of three or more: any two values are in one of them."""
    places = product(*(range(len(values)) for values in factors))
    even = [place for place in places if sum(place) % 2 == 0]
    return [tuple(v[n] for v, n in zip(factors, place, strict=True)) for place in even]


def assert_close(
    name: str,
    expected: Tensor | np.ndarray | float,
    actual: Tensor | np.ndarray | float,
    dtype: torch.dtype = torch.float64,
    *,
    factor: float = 1.0,
) -> None:
    """Every entry within `factor` * EPS[dtype], relative to the largest expected entry or 1."""
    expected, actual = _float64(expected), _float64(actual)
    if expected.shape != actual.shape:
        raise AssertionError(
            f"{name}: expected shape {tuple(expected.shape)}, got {tuple(actual.shape)}"
        )
    if expected.numel() == 0:
        return
    tolerance = factor * EPS[dtype] * max(1.0, expected.abs().max().item())
    error = (expected - actual).abs()
    if not (error <= tolerance).all():  # written so that NaN fails
        flat = int(error.nan_to_num(torch.inf, torch.inf).argmax())
        worst = tuple(int(i) for i in np.unravel_index(flat, error.shape))
        raise AssertionError(
            f"{name}: worst at {worst}: expected {expected[worst].item():.17g}, "
            f"got {actual[worst].item():.17g}, error {error[worst].item():.1e} > {tolerance:.1e}"
        )


def _float64(value: Tensor | np.ndarray | float) -> Tensor:
    value = value.copy() if isinstance(value, np.ndarray) else value  # torch warns if read-only
    return torch.as_tensor(value, dtype=torch.float64).detach()


def randn(*shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Gaussian entries, drawn in float64 so that every dtype sees the same matrix."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def random_skew(
    d: int,
    *,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float64,
    batch: tuple[int, ...] = (),
) -> Tensor:
    """Skew matrices whose upper triangle is standard Gaussian."""
    upper = randn(*batch, d, d, generator=generator).triu(1)
    return (upper - upper.mT).to(dtype)


def random_stiefel(
    d: int,
    k: int | None = None,
    *,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float64,
    batch: tuple[int, ...] = (),
) -> Tensor:
    """Orthonormal columns from a plain QR: not Haar, and independent of `geometry.haar`."""
    k = d if k is None else k
    return torch.linalg.qr(randn(*batch, d, k, generator=generator)).Q.to(dtype)


def with_norm(A: Tensor, norm: float) -> Tensor:
    """`A` scaled to the given spectral norm."""
    return A * (norm / torch.linalg.matrix_norm(A, 2, keepdim=True))


def scipy_expm(A: Tensor) -> Tensor:
    """The exponential of one float64 matrix by scipy, an oracle that shares no code with torch."""
    import scipy.linalg  # here, so that tests without this oracle run where scipy is missing

    return torch.from_numpy(scipy.linalg.expm(A.detach().numpy()))


def fitted_slope(steps: Sequence[float], errors: Sequence[float]) -> float:
    """Slope of log(error) against log(step): the measured order."""
    return float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


def matrix_rank(vectors: Sequence[Tensor]) -> int:
    """Dimension of the span of some matrices, flattened, by numpy."""
    return int(np.linalg.matrix_rank(np.stack([v.numpy().ravel() for v in vectors])))


def numbers_of(report):
    """The numbers of a report by weight, as attributes."""
    found = {}
    for key, value in report.items():
        name, number = key.rsplit("/", 1)
        found.setdefault(name, SimpleNamespace(name=name)).__dict__[number] = value
    return list(found.values())


def reasons_of(optimizer):
    """What a report says of each weight, in lines."""
    return "\n".join(optimizer.report().reasons.values())
