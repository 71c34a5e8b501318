r"""The exact step: $\Gamma(-lr\,\Omega)X$ with all of $\Omega$ (Eq. 4)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.precision import full_precision, is_coarse, users_precision
from ..geometry.retractions import cayley
from ..kernels.multiply_where import multiply_where_, num_rounds
from ..kernels.update import LARGEST_ANGLE
from ._dense_host import exp_step_on_host
from ._exponential import FEW_SQUARINGS, expm_minus_identity, frobenius, spectral_bound
from ._guard import polish_
from ._polar import nearest_along, polar_step
from ._tangent import tangent_part


def dense_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: float | Tensor,
    retraction: Literal["exp", "cayley", "polar"],
    moments: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "n d k"]:
    r"""The exact descent step along the direction D, on a batch.

    "exp" follows the canonical geodesic of $-\Omega X$, in $O(dk^2)$ when 2k < d; "cayley" solves a
    (d, d) system; "polar" takes the tangent step and goes to the nearest point, by products only.
    The result is orthogonal for any finite `lr`, though a plane does not turn by more than
    `LARGEST_ANGLE`, or `LARGEST_THIN_ANGLE` when 2k < d. Where the user allows TF32 the direction
    is computed in it, the orthogonality never.

    Second moments of the rows divide the entry (i, j) of $\Omega$ by their root mean square. Where
    $\Omega$ is not formed, the mean of all rows divides all of it.

    On CUDA the learning rate may be a float64 there, so that a graph of the step can be told it.
    """
    d, k = X.shape[-2:]
    if moments is not None and not forms_omega(d, k, retraction):
        D, moments = D / moments.mean(-1).sqrt().to(D)[:, None, None], None
    if retraction == "polar":
        if moments is None:
            return polar_step(X, D, lr)[0]
        if len(X) == 1 and X.device.type == "cpu":  # torch has faster products for one
            return _nearest_along(X[0], D[0], lr, moments[0])[None]
        return _nearest_along(X, D, lr, moments)
    if retraction == "exp":
        if len(X) == 1 and X.device.type == "cpu" and moments is None:
            return exp_step(X[0], D[0], float(lr))[0][None]
        return _exponential_step(X, D, lr, moments)
    omega = _generator(X, D, moments)
    with full_precision():
        U, norm = _normalised(omega)
        angle = (lr * norm).clamp(max=LARGEST_ANGLE[X.dtype])
        Y = cayley(U * -angle.to(X.dtype)[:, None, None]) @ X
        polish_(Y)  # a large angle costs digits
        return Y


def exp_step(
    X: Float[Tensor, "d k"],
    D: Float[Tensor, "d k"],
    lr: float,
    *,
    tangent: bool = False,
    out: Tensor | None = None,
) -> tuple[Float[Tensor, "d k"], Float[Tensor, "d k"] | None]:
    """The exponential step of one matrix on a CPU, and the tangent part of D if asked for.

    The latter may come in `out`, which may be D.
    """
    taken = exp_step_on_host(X, D, lr, tangent=tangent, out=out)
    if taken is not None:
        return taken
    Y = _exponential_step(X[None], D[None], lr, None)[0]
    if not tangent:
        return Y, None
    with full_precision():
        return Y, tangent_part(X, D, out=out)


def forms_omega(d: int, k: int, retraction: str) -> bool:
    """Whether a dense step forms the (d, d) generator; a polar one does so for second moments."""
    return retraction == "cayley" or 2 * k >= d


def adapted_step(
    X: Float[Tensor, "d d"], D: Float[Tensor, "d d"], lr: float, moments: Float[Tensor, "d"]
) -> tuple[Float[Tensor, "d d"], Float[Tensor, "d d"]]:
    r"""The polar step with second moments of a square matrix on a CPU, and the tangent part of D.

    That is $\Omega X/2$, with the generator before it is divided; in the precision of the context.
    """
    S = D @ X.mT
    omega = S - S.mT
    tangent = torch.addmm(D, omega, X, beta=0, alpha=0.5)
    w = moments.to(omega)
    omega.div_((w[:, None] + w).mul_(0.5).sqrt_())
    return nearest_along(X, omega @ X, lr), tangent


def _nearest_along(X: Tensor, D: Tensor, lr: float | Tensor, moments: Tensor) -> Tensor:
    with users_precision(X):
        R = _generator(X, D, moments) @ X
    return nearest_along(X, R, lr)


def _exponential_step(
    X: Tensor, D: Tensor, lr: float | Tensor, moments: Tensor | None
) -> Float[Tensor, "n d k"]:
    """As `dense_step`, for any device and any length."""
    _, d, k = X.shape
    if not forms_omega(d, k, "exp"):
        return _thin_step(X, D, lr)
    with users_precision(X):
        return _turned(X, _generator(X, D, moments), lr)


def _generator(X: Tensor, D: Tensor, moments: Tensor | None) -> Float[Tensor, "*n d d"]:
    """All of it, with its entries divided by the root mean squares of their rows."""
    with users_precision(X):
        S = D @ X.mT
        omega = S - S.mT
        if moments is not None:
            w = moments.to(omega)
            omega = omega / ((w[..., :, None] + w[..., None, :]) / 2).sqrt()
        return omega


def _turned(
    X: Float[Tensor, "n d k"], omega: Float[Tensor, "n d d"], lr: float | Tensor
) -> Float[Tensor, "n d k"]:
    r"""$\exp(-lr\,\Omega)X$ in four products of (d, d) matrices, if the norm is small."""
    U, norm = _normalised(omega)
    U2 = U @ U
    most = LARGEST_ANGLE[X.dtype]
    E, squarings = expm_minus_identity(U, U2, -(lr * norm), spectral_bound(U2), most)
    Y = (E @ X).add_(X)  # a sum that begins with X would be rounded at each term
    if is_coarse(X):
        polish_(Y)
    # A skew generator keeps whatever lengths there are, so nothing else needs a polish.
    return _polished_where(Y, squarings)


def _thin_step(
    X: Float[Tensor, "n d k"], D: Float[Tensor, "n d k"], lr: float | Tensor
) -> Float[Tensor, "n d k"]:
    r"""$\exp(-lr\,\Omega)X$ in the basis of the columns of X and $W = (I - XX^\top)D$.

    There $\Omega$ is $\begin{bmatrix}K & -W^\top W\\ I & 0\end{bmatrix}$ with
    $K = X^\top D - D^\top X$, as in `geodesic`. Division of W by a bound on its norm balances it.
    """
    k = X.shape[-1]
    with users_precision(X):
        D, norm = _normalised(D)
        S = X.mT @ D
        K = S - S.mT
        W = torch.baddbmm(D, X, S, alpha=-1)
        C = W.mT @ W
        c = frobenius(C).sqrt()
        bound = spectral_bound(K @ K) + c
        c = torch.where(c > 0, c, 1).to(X.dtype)[:, None, None]
        I = torch.eye(k, dtype=X.dtype, device=X.device)
        B = torch.cat(
            [torch.cat([K, -C / c], dim=-1), torch.cat([c * I, torch.zeros_like(K)], dim=-1)],
            dim=-2,
        )
        most = LARGEST_THIN_ANGLE[X.dtype]
        angle = -(lr * norm).clamp(max=most)  # of a normal D rounding leaves eps, not all tangent
        E, squarings = expm_minus_identity(B, B @ B, angle, bound, most)
        Y = torch.baddbmm(X, X, E[:, :k, :k]).baddbmm_(W / c, E[:, k:, :k])
    polish_(Y)  # the basis takes X for orthonormal: its error could grow from step to step
    return _polished_where(Y, squarings - FEW_THIN_SQUARINGS)


LARGEST_THIN_ANGLE = {torch.float32: 2.0**9, torch.float64: 2.0**14}
"""Where W has not full rank its basis is none: then rounding grows with the square of the angle."""

FEW_THIN_SQUARINGS = 5
"""After which one polish suffices; see `FEW_SQUARINGS`."""


def _normalised(A: Float[Tensor, "n a b"]) -> tuple[Float[Tensor, "n a b"], Float[Tensor, "n"]]:
    """A over its Frobenius norm, whose powers then neither overflow nor vanish, and the norm."""
    norm = frobenius(A)
    divisor = torch.where(norm > 0, norm, 1).to(A.dtype)
    return A / divisor[:, None, None], norm


def _polished_where(
    Y: Float[Tensor, "n d k"], squarings: Float[Tensor, "n"]
) -> Float[Tensor, "n d k"]:
    """Newton-Schulz steps as in `polish_`: one where there were squarings, two where many."""
    with full_precision():
        for least in range(num_rounds((squarings > 0) + 1 * (squarings > FEW_SQUARINGS), 2, Y)):
            live = squarings > least * FEW_SQUARINGS
            G, Z = torch.empty_like(Y[:, : Y.shape[-1]]), torch.empty_like(Y)
            multiply_where_(G, Y.mT, Y, live)
            multiply_where_(Z, Y, G, live, Y, -0.5, 1.5)
            Y = torch.where(live[:, None, None], Z, Y)
    return Y
