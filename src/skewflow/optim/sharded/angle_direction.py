r"""The direction of an exact step whose learning rate is an angle, for a weight with split rows.

It is that of `kernels.turn_by_angle.exact`, from sums over processes. With $X^\top X = I$ all that
has to be sent besides $S = X^\top D$ is $W^\top W$, or its trace.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import full_precision
from ...kernels.norms import frobenius
from ...kernels.turn_by_angle.exact import sign_of_factored
from ...kernels.turn_by_angle.reference import Angle, planes_of
from .exact_step import Sub, lower, symmetric
from .rounds import Groups, Sum


def direction_by_angle(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    S: Float[Tensor, "n k k"],
    norm: Float[Tensor, "n"],
    angle: Angle,
    rows: int,
    groups: Groups,
) -> Sub:
    r"""A direction whose generator is that of D scaled to one radian.

    Args:
        X: The rows of the points on this process.
        D: The same rows of the directions.
        S: $X^\top D$ over all rows.
        norm: A bound on the norm of each direction.
        angle: "rms" or "spectral".
        rows: The number of all rows.
        groups: The processes that have the other rows.

    Returns:
        The direction, its product $X^\top D$, and its norm.
    """
    k = X.shape[-1]
    planes = planes_of(rows, k)
    with full_precision():
        size = torch.where(norm > 0, norm, 1).to(X.dtype)[:, None, None]
        S = S / size
        K, W = S - S.mT, torch.baddbmm(D / size, X, S, alpha=-1)
        if angle == "rms":
            (squares,) = yield [Sum(W.square().sum((-2, -1)), groups)]
            squares = squares.double()
            length = (frobenius(K).square() + 2 * squares).sqrt()
            scale = (2 * planes) ** 0.5 / torch.where(length > 0, length, 1)
            T = torch.baddbmm(W, X, K, alpha=0.5)
            long = (squares + frobenius(K).square() / 4).sqrt() * scale
            c = scale.to(X.dtype)[:, None, None]
            return T * c, K / 2 * c, long.to(X.dtype)
        (C,) = yield [Sum(lower(W.mT @ W), groups)]
        C = symmetric(C, k)
        c = C.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt()[:, None, None]  # the norm of W
        per_c = 1 / torch.where(c > 0, c, 1)
        I = torch.eye(k, dtype=X.dtype, device=X.device).expand_as(C)
        N = torch.cat([torch.cat([0 * K, c * I], -1), torch.cat([-c * I, K], -1)], -2)
        M = torch.cat([torch.cat([C * per_c**2, 0 * I], -1), torch.cat([0 * I, I], -1)], -2)
        N = sign_of_factored(N, M, planes)
        F = torch.cat([N[:, :k, k:], N[:, k:, k:] / 2], -2)  # of W / c and X
        squares = (F * (M @ F)).sum((-2, -1)).clamp(min=0)
        return W @ (F[:, :k] * per_c) + X @ F[:, k:], F[:, k:], squares.sqrt()
