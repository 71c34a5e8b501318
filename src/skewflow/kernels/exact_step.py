r"""The exact step: $\Gamma(-lr\,\Omega)X$ with all of $\Omega$ (Eq. 4)."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from .exact_cayley import cayley_step
from .exact_exponential import exponential_step
from .exact_polar import polar_step, polar_step_with_moments
from .generator import forms_omega


def exact_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: float | Tensor,
    retraction: Literal["exp", "cayley", "polar"],
    moments: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "n d k"]:
    r"""The exact descent step along the direction D, on a batch.

    "exp" follows the canonical geodesic of $-\Omega X$, in $O(dk^2)$ when 2k < d; "cayley" solves a
    (d, d) system; "polar" takes the tangent step and goes to the nearest point, by products only.
    The result is orthogonal for any finite `lr`, but a plane does not turn by more than
    `LARGEST_ANGLE`, or `LARGEST_THIN_ANGLE` when 2k < d. Where the user allows TF32, it is used for
    the direction, never for the orthogonality.

    Second moments of the rows divide the entry (i, j) of $\Omega$ by their root mean square. If
    $\Omega$ is not formed, the mean over all rows divides it.

    On CUDA the learning rate may be a float64 tensor, so that a captured graph can change it.
    """
    d, k = X.shape[-2:]
    if moments is not None and not forms_omega(d, k, retraction):
        D, moments = D / moments.mean(-1).sqrt().to(D)[:, None, None], None
    if retraction == "polar":
        if moments is None:
            return polar_step(X, D, lr)[0]
        return polar_step_with_moments(X, D, lr, moments)
    if retraction == "exp":
        return exponential_step(X, D, lr, moments)
    return cayley_step(X, D, lr, moments)
