"""The exact step by Cayley's transform, which solves a (d, d) system."""

from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision
from ...geometry.retractions import cayley
from ..generator import generator
from ..norms import normalised
from ..polish.reference import polish_
from ..update import LARGEST_ANGLE


def cayley_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: float | Tensor,
    moments: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "n d k"]:
    r"""$\Gamma(-lr\,\Omega)X$ on a batch; see `exact_step`."""
    omega = generator(X, D, moments)
    with full_precision():
        U, norm = normalised(omega)
        angle = (lr * norm).clamp(max=LARGEST_ANGLE[X.dtype])
        Y = cayley(U * -angle.to(X.dtype)[:, None, None]) @ X
        polish_(Y)  # a large angle costs digits
        return Y
