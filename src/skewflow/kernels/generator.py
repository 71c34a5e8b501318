r"""The generator $\Omega = DX^\top - XD^\top$ of an exact step."""

from jaxtyping import Float
from torch import Tensor

from ..geometry.precision import users_precision


def generator(X: Tensor, D: Tensor, moments: Tensor | None) -> Float[Tensor, "*n d d"]:
    """The whole generator, with its entries divided by the root mean squares of their rows."""
    with users_precision(X):
        S = D @ X.mT
        omega = S - S.mT
        if moments is not None:
            w = moments.to(omega)
            omega = omega / ((w[..., :, None] + w[..., None, :]) / 2).sqrt()
        return omega


def forms_omega(d: int, k: int, retraction: str) -> bool:
    """Whether a dense step forms the (d, d) generator; a polar one does so for second moments."""
    return retraction == "cayley" or 2 * k >= d
