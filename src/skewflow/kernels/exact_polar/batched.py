r"""The nearest point to tangent steps, in plain torch on batches, for any device.

The device decides how many rounds and terms a step needs.
"""

import torch
from torch import Tensor

from ...geometry.precision import users_precision
from ..multiply_where import choose_buffer, multiply_where_, num_rounds
from ..norms import frobenius
from . import limits


def cut_step(X: Tensor, R: Tensor, D: Tensor, lr: float | Tensor) -> Tensor:
    """X - lr R, cut to `limits.LONGEST`."""
    most = torch.finfo(X.dtype).max
    largest = D.abs().amax((-2, -1)).double()  # its square may underflow
    longer = (
        torch.maximum(frobenius(R), frobenius(D)).maximum(largest).clamp_(min=limits.LONGEST / most)
    )
    length = (limits.LONGEST / longer).clamp_(max=lr)
    return X - R * length.to(X.dtype)[..., None, None]


def gram(Y: Tensor) -> Tensor:
    r"""$Y^\top Y - I$."""
    P = Y.mT @ Y
    P.diagonal(dim1=-2, dim2=-1).sub_(1)
    return P


def nearest(X: Tensor, Y: Tensor, P: Tensor, long: Tensor | None = None) -> Tensor:
    r"""The polar factor of tangent steps from X, given $P = Y^\top Y - I$.

    A step longer than `limits.WIDEST` allows is cut to $X + c(Y - X)$, for which P is $c^2P$. Steps
    that are not `long` take one term of the series: for them $P^2$ counts as zero.
    """
    lows, factors = limits.intervals(Y.dtype, Y.device)
    last = len(lows) - 1
    if long is None:
        P2 = P @ P
    else:
        P2 = torch.zeros_like(P)
        multiply_where_(P2, P, P, long)
    bound = frobenius(P2).sqrt()  # of the norm of P
    cut = (limits.WIDEST / bound).clamp(max=1).to(Y.dtype)[:, None, None]
    Y = torch.lerp(X, Y, cut.sqrt())
    P, P2, bound = P * cut, P2 * cut.square(), bound.clamp(max=limits.WIDEST)
    low = (1 + bound).rsqrt()
    start = (torch.bucketize(low, lows, right=True) - 1).clamp(min=0)
    needed = last - start
    c = (2 / (2 + bound)).sqrt()  # moves the middle of the interval to 1
    rounds = num_rounds(needed, last, Y)
    if rounds:
        # low Y has its singular values in [low, 1]; the factors of the rounds come last.
        r = torch.arange(rounds, device=Y.device)[:, None]
        live = needed > r
        scales = low * torch.where(live, factors[(start + r).clamp(max=last)], 1).cumprod(0)
        now, then, G = Y, torch.empty_like(Y), torch.empty_like(P)
        for live_r, c_r in zip(live, scales.square(), strict=True):
            multiply_where_(G, now.mT, now, live_r, None, c_r)
            multiply_where_(then, now, G, live_r, now, -0.5, 1.5)
            now, then = then, now
        Y = choose_buffer(needed, rounds, now, then)
        multiply_where_(P, Y.mT, Y, live[0])
        P.diagonal(dim1=-2, dim2=-1).sub_(live[0].to(Y.dtype)[:, None])
        multiply_where_(P2, P, P, live[0])
        middle = ((1 + lows[last].square()) / 2).sqrt()
        c = torch.where(live[0], scales[-1] / middle, c)
    return _times_inverse_root(Y, P, P2, c, long)


def _times_inverse_root(
    Y: Tensor, P: Tensor, P2: Tensor, centre: Tensor, long: Tensor | None
) -> Tensor:
    r"""$cY(c^2Y^\top Y)^{-1/2}$ with the factor c that makes $Q = c^2Y^\top Y - I$ small.

    $Y^\top Y = I + P$, so $Q = c^2P + (c^2 - 1)I$.
    """
    c = centre.to(Y.dtype)[:, None, None]
    more = (centre.square() - 1).to(Y.dtype)[:, None]
    Q = P * c.square()
    Q2 = (P2 * c.pow(4)).add_(2 * Q * more[..., None])
    Q.diagonal(dim1=-2, dim2=-1).add_(more)
    Q2.diagonal(dim1=-2, dim2=-1).add_(more.square())
    with users_precision(Y):
        T, V = (Q2 * (3 / 8)).add_(Q, alpha=-1 / 2), (Q2 * (35 / 128)).add_(Q, alpha=-5 / 16)
        if long is None:
            T.baddbmm_(Q2, V)
        else:
            multiply_where_(T, Q2, V, long, T, 1.0, 1.0)
    Z = Y * c
    return torch.baddbmm(Z, Z, T)
