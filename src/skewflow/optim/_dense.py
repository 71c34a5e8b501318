r"""The exact step: $\Gamma(-lr\,\Omega)X$ with all of $\Omega$ (Eq. 4)."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.geodesics import follow
from ..geometry.precision import full_precision
from ..geometry.retractions import cayley, expm, expm_without_waiting
from ._guard import polish_

POLAR_STEPS = 12
"""Newton-Schulz steps of the polar retraction: enough for singular values within a factor 20."""

SMALL = 256
"""Largest matrix whose needless squarings cost less than a wait for the device."""


def dense_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: float,
    retraction: Literal["exp", "cayley", "polar"],
    moments: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "n d k"]:
    r"""The exact descent step along the direction D, on a batch.

    "exp" follows the canonical geodesic of $-\Omega X$, in $O(dk^2)$ when 2k < d; "cayley" solves a
    (d, d) system; "polar" takes the tangent step and goes to the nearest point, by products only.

    Second moments of the rows divide the entry (i, j) of $\Omega$ by their root mean square. Where
    $\Omega$ is not formed, the mean of all rows divides all of it.
    """
    with full_precision():
        d, k = X.shape[-2:]
        exponential = _exponential(X.device, min(d, 2 * k))
        if moments is not None and not forms_omega(d, k, retraction):
            D = D / moments.mean(-1).sqrt().to(D)[:, None, None]
        if retraction == "exp" and 2 * k < d:
            R = D - X @ (D.mT @ X)
            Y = follow(X, -lr * R, 1.0, exponential)
            polish_(Y)
            return Y
        if retraction == "polar":
            R = D - X @ (D.mT @ X)
            return _nearest(X - lr * R)
        S = D @ X.mT
        omega = S - S.mT
        if moments is not None:
            w = moments.to(omega)
            omega = omega / ((w[:, :, None] + w[:, None, :]) / 2).sqrt()
        gamma = exponential if retraction == "exp" else cayley
        Y = gamma(-lr * omega) @ X
        polish_(Y)  # a large angle costs digits
        return Y


def _exponential(device: torch.device, size: int) -> Callable[[Tensor], Tensor]:
    """On CUDA, where it costs little or a graph is captured, the one that does not wait."""
    if device.type == "cuda" and (size <= SMALL or torch.cuda.is_current_stream_capturing()):
        return expm_without_waiting
    return expm


def forms_omega(d: int, k: int, retraction: str) -> bool:
    """Whether a dense step forms the (d, d) generator."""
    return retraction == "cayley" or (retraction == "exp" and 2 * k >= d)


def _nearest(Y: Float[Tensor, "n d k"]) -> Float[Tensor, "n d k"]:
    """The polar factor of a tangent step, whose singular values are all at least 1."""
    Y = Y / torch.linalg.matrix_norm(Y.mT @ Y, ord=float("inf"))[..., None, None].sqrt()
    for _ in range(POLAR_STEPS):
        Y = 1.5 * Y - 0.5 * Y @ (Y.mT @ Y)
    polish_(Y)
    return Y
