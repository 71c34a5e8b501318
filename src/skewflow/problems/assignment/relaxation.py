"""Quadratic assignment over the squares of orthogonal matrices."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry import haar
from ...optim import FlowSGD

FLAT, SHARP = 0.3, 0.1
"""Weights of the sum of P^2 at the start (flattens P) and at the end (sharpens it)."""

LR, MOMENTUM = 1.0, 0.9
"""Step size for a cost of unit curvature, and momentum."""


def orthostochastic_flow(
    A: Float[Tensor, "n n"],
    B: Float[Tensor, "n n"],
    L: Float[Tensor, "n n"],
    *,
    restarts: int,
    steps: int,
    seed: int,
) -> Float[Tensor, "restarts n n"]:
    r"""Doubly stochastic P near minima of $\langle A, P B P^\top\rangle + \langle L, P\rangle$.

    $P = X \circ X$ is doubly stochastic for every X in O(n), and a permutation where X is one up to
    signs. `FlowSGD` moves a batch of Haar points X by exact steps. The weight of
    $\sum_{ij} P_{ij}^2$ falls from positive (which flattens P, so that all starts begin alike) to
    negative (which drives P to a permutation), as in path following (Zaslavskiy et al. 2009).
    The paper names assignment (Sec. 1), but gives no method.
    """
    n = len(A)
    g = torch.Generator().manual_seed(seed)
    X = torch.nn.Parameter(
        haar(n, batch=(restarts,), generator=g, dtype=torch.float64).to(torch.float32)
    )
    scale = _spread(A) * _spread(B) + _spread(L)
    scale = scale if scale > 0 else 1.0
    root = math.sqrt(scale)
    a, b = (A / root).to(X.dtype), (B / root).to(X.dtype)
    linear = (L / scale).to(X.dtype)
    optimizer = FlowSGD([X], lr=LR, momentum=MOMENTUM, block_size="dense", retraction="polar")
    for step in range(steps):
        P = X.detach() ** 2
        G = a @ P @ b.mT + a.mT @ P @ b + linear
        # Rows and columns of P sum to one, so these means change nothing but the rounding errors.
        G = G - G.mean(-1, keepdim=True) - G.mean(-2, keepdim=True) + G.mean((-1, -2), keepdim=True)
        weight = FLAT - (FLAT + SHARP) * step / steps
        X.grad = 2 * X.detach() * (G + 2 * weight * P)
        optimizer.step()
    return (X.detach() ** 2).to(torch.float64)


def _spread(A: Float[Tensor, "n n"]) -> float:
    """The spectral norm of a matrix whose row and column means were removed."""
    centred = A - A.mean(0) - A.mean(1)[:, None] + A.mean()
    return float(torch.linalg.matrix_norm(centred, 2))
