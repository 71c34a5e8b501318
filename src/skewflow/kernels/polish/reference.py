"""The residual of points, measured along random signs, and the polish that removes it."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision
from ..permutation.reference import make_key, mix


def residuals(
    Xs: Sequence[Float[Tensor, "n d k"]], seed: int, streams: Sequence[int], check: int
) -> Float[Tensor, "m"]:
    r"""The largest $\|(X^\top X - I)z\| / \sqrt k$ over each parameter's matrices, z random signs.

    Its square has the mean $\|X^\top X - I\|_F^2 / k$. The signs are hashed from the number of the
    check, so that a resumed run uses the same z, and on the host, so that nothing waits.

    Args:
        Xs: Parameters of one shape.
        seed: Seed of the signs.
        streams: Number of the first matrix of each parameter.
        check: Number of the check.
    """
    (n, _, k), m, device = Xs[0].shape, len(Xs), Xs[0].device
    key = make_key(torch.tensor(seed), torch.tensor(streams), torch.tensor(check))
    z = (1 - 2 * (mix(torch.arange(n * k) ^ key[:, None]) & 1)).to(Xs[0].dtype)
    if device.type == "cuda":
        z = z.pin_memory().to(device, non_blocking=True)
    with full_precision():
        if m * n == 1:  # a product with a vector is limited by the bandwidth of memory
            X, z = Xs[0][0], z[0]
            r = (X.mT @ (X @ z) - z).view(1, 1, k)
        else:
            X, z = torch.stack(list(Xs)), z.view(m, n, k, 1)
            r = (X.mT @ (X @ z) - z).squeeze(-1)
    return torch.linalg.vector_norm(r, dim=-1).amax(-1) / k**0.5


def polish_(X: Float[Tensor, "n d k"]) -> None:
    r"""One Newton-Schulz step $X \leftarrow X - \frac12 X(X^\top X - I)$, in place.

    The error e becomes about $\frac34 e^2$, far below rounding for the errors that trigger it.
    """
    with full_precision():
        E = X.mT @ X
        E.diagonal(dim1=-2, dim2=-1).sub_(1)
        X.sub_(X @ E, alpha=0.5)
