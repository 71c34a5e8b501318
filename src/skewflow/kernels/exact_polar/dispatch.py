"""The polar factor of a tangent step by products, and the choice of the code for it."""

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision, is_coarse, users_precision
from .._runtime.devices import on, on_device
from ..generator import generator
from ..multiply_parts import is_faster
from ..multiply_where import has_kernel
from ..norms import frobenius
from ..tangent import tangent_part
from ..update import Update
from . import limits
from .batched import cut_step, gram, nearest
from .cpu import nearest_on_cpu, polar_step_on_cpu, walk

MOST_COLUMNS = 64
"""Most columns of a small matrix: its Gram matrices must fit the registers of one program."""

MOST_ENTRIES = 1 << 16
"""Most entries of a small matrix: one program walks along all of its rows, so a longer matrix would
take too long."""


def polar_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: float | Tensor,
    *,
    tangent: bool = False,
) -> tuple[Float[Tensor, "n d k"], Float[Tensor, "n d k"] | None]:
    r"""The nearest point to $X - lr\,\Omega X$, with $\Omega X = D - X D^\top X$.

    The singular values of the tangent step lie between 1 and a bound, because $\Omega X$ is
    tangent. If the bound is large, Newton-Schulz steps, scaled for the remaining interval, bring
    them together, as many as a matrix needs. Then four terms of the series of $(Y^\top Y)^{-1/2}$
    are enough, or fewer for a short step. The series uses the Gram matrix of Y, so the result is
    orthogonal even where `X` had drifted.

    Args:
        X: Points.
        D: Directions.
        lr: Step size; on CUDA it may be a float64 there.
        tangent: Also give the tangent part of `D`, $D - X\,\mathrm{sym}(X^\top D)$: on a square
            matrix it is half of $\Omega X$.

    Returns:
        The new points, and with `tangent` the tangent parts.
    """
    if X.device.type == "cpu":
        assert not isinstance(lr, Tensor)
        if len(X) > 1:
            return polar_step_on_cpu(X, D, lr, tangent)
        y, t = polar_step_on_cpu(X[0], D[0], lr, tangent)
        return y[None], None if t is None else t[None]
    coarse = is_coarse(X)
    if not coarse and is_faster(X):
        return polar_step_by_parts(X, D, lr, tangent=tangent)
    with nullcontext() if coarse else full_precision():
        S = X.mT @ D
        R = torch.baddbmm(D, X, S.mT, alpha=-1)
        T = None
        if tangent:
            square = X.shape[-2] == X.shape[-1]
            T = R / 2 if square else tangent_part(X, D, S)
        if not coarse:
            return retract(X, R, D, lr), T
    with full_precision():
        return retract(X, R, D, lr), T


def polar_step_by_parts(
    X: Tensor, D: Tensor, lr: float | Tensor, *, tangent: bool
) -> tuple[Tensor, Tensor | None]:
    """`polar_step` on CUDA by products of float16 parts, which are as accurate as float32."""
    from . import _triton

    lr = lr if isinstance(lr, Tensor) else on_device(lr, X.device)
    with on(X.device):
        return _triton.polar_step_by_parts(X, D, lr, tangent=tangent)


def nearest_along(
    X: Float[Tensor, "*n d k"], R: Float[Tensor, "*n d k"], lr: float | Tensor
) -> Float[Tensor, "*n d k"]:
    """The nearest points to X - lr R, where R is a skew matrix times X.

    Such a direction is always tangent, so only its length is cut. On a CPU a single matrix may be
    given without a batch dimension.
    """
    with full_precision():
        if X.device.type == "cpu":
            return nearest_on_cpu(X, walk(X, R, R, float(lr)))
        return retract(X, R, R, lr)


def polar_step_with_moments(
    X: Float[Tensor, "n d k"], D: Float[Tensor, "n d k"], lr: float | Tensor, moments: Tensor
) -> Float[Tensor, "n d k"]:
    r"""The polar step along $\Omega X$, with $\Omega$ divided as `generator` does."""
    one = len(X) == 1 and X.device.type == "cpu"  # torch has faster products for one
    if one:
        X, D, moments = X[0], D[0], moments[0]
    with users_precision(X):
        R = generator(X, D, moments) @ X
    Y = nearest_along(X, R, lr)
    return Y[None] if one else Y


def retract(X: Tensor, R: Tensor, D: Tensor, lr: float | Tensor) -> Tensor:
    """The nearest point to X - lr R on CUDA, where only the device knows how long a step is."""
    if not has_kernel(X):
        Y = cut_step(X, R, D, lr)
        P = gram(Y)
        return nearest(X, Y, P, frobenius(P) > limits.longest_for_one_term(X))
    from . import _triton

    lr = lr if isinstance(lr, Tensor) else on_device(lr, X.device)
    with on(X.device):
        return _triton.nearest(X, R, (frobenius(R), frobenius(D)), lr)


def has_small_kernel(X: Float[Tensor, "n d k"], retraction: str, update: Update) -> bool:
    """Whether `plan_small_polar` can step such points and is the fastest code."""
    _, d, k = X.shape
    small = k <= MOST_COLUMNS and d * k <= MOST_ENTRIES
    if X.device.type != "cuda" or X.dtype != torch.float32 or not small:
        return False
    return retraction == "polar" and update.beta2 is None and not update.nesterov
