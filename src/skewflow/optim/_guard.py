r"""The drift guard: a cheap look at $X^\top X - I$ now and then, and a polish when it has grown.

A rotation of rows is exact up to rounding, so the error grows like a random walk: about
eps * sqrt(steps). The look costs two products with one vector. Where the parameter lives on a GPU
its answer is read only at the next look, from pinned memory, so that no step ever waits for it.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..geometry.precision import full_precision
from ..kernels.permutation.reference import make_key, mix, scalar

TOLERANCE = {torch.float32: 4e-6, torch.float64: 4e-13}
r"""Largest $\|X^\top X - I\|_F / \sqrt k$ that is left alone."""


def residual(
    X: Float[Tensor, "n d k"], seed: int, stream: int, step: Int[Tensor, ""]
) -> Float[Tensor, ""]:
    r"""The largest $\|(X^\top X - I)z\| / \sqrt k$ over the matrices, z random signs.

    Its square has the mean $\|X^\top X - I\|_F^2 / k$. The signs are hashed from the step, so that
    a resumed run looks along the same z.
    """
    n, _, k = X.shape
    numbers = torch.arange(n * k, device=X.device)
    key = make_key(scalar(seed, X.device), scalar(stream, X.device), step)
    z = (1 - 2 * (mix(numbers ^ key) & 1)).to(X.dtype).view(n, k, 1)
    with full_precision():
        r = X.mT @ (X @ z) - z
    return torch.linalg.vector_norm(r, dim=(-2, -1)).amax() / k**0.5


def polish_(X: Float[Tensor, "n d k"]) -> None:
    r"""One Newton-Schulz step $X \leftarrow X - \frac12 X(X^\top X - I)$, in place.

    The error e becomes about $\frac34 e^2$, far below rounding for the errors that trigger it.
    """
    with full_precision():
        E = X.mT @ X
        E.diagonal(dim1=-2, dim2=-1).sub_(1)
        X.sub_(X @ E, alpha=0.5)
