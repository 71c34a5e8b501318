"""Chooses the code of the exponential step."""

from jaxtyping import Float
from torch import Tensor

from .batched import batched_step
from .cpu import exponential_step_on_cpu


def exponential_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: float | Tensor,
    moments: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "n d k"]:
    r"""$\exp(-lr\,\Omega)X$ on a batch; see `exact_step`."""
    if len(X) == 1 and X.device.type == "cpu" and moments is None:
        return exponential_step_on_cpu(X[0], D[0], float(lr))[0][None]
    return batched_step(X, D, lr, moments)
