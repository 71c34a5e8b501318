"""The polar factor of a tangent step, by products only."""

import math
from bisect import bisect_right
from contextlib import nullcontext
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.precision import full_precision, is_coarse, is_exact, users_precision
from ..kernels._devices import on
from ..kernels.multiply_parts import is_faster
from ..kernels.multiply_where import has_kernel, multiply_where_, num_rounds
from ._exponential import choose_buffer, frobenius
from ._replayed import on_device
from ._tangent import tangent_part

LONGEST = 2.0**12
"""The tangent step is cut to this Frobenius norm, so that its square does not overflow. The
direction, too: what rounding leaves of one that is normal is not tangent."""

WIDEST = 6.5
r"""Largest bound on $\|Y^\top Y - I\|$: what is longer is cut to it. Then two Newton-Schulz steps
are enough for any learning rate, in float64 four."""

LARGEST_TURN = math.atan(math.sqrt(WIDEST))
"""The most by which a plane turns: 69 degrees."""

WIDTH = {torch.float32: 0.05, torch.float64: 5e-4}
r"""Largest $\|Y^\top Y - I\|$ for the series of four terms: its next is 8e-8 and 8e-18 there."""

ERROR = {torch.float32: 2e-7, torch.float64: 2e-16}
r"""Largest next term of a shorter series, over $\sqrt k$; twice as much is left of
$\|Y^\top Y - I\|_F$. Nothing adds up: every step corrects what the one before it has left."""

SHORTEST = {dtype: math.sqrt(torch.finfo(dtype).tiny) for dtype in (torch.float32, torch.float64)}
"""Where squares vanish."""


def polar_step(
    X: Float[Tensor, "n d k"],
    D: Float[Tensor, "n d k"],
    lr: float | Tensor,
    *,
    tangent: bool = False,
) -> tuple[Float[Tensor, "n d k"], Float[Tensor, "n d k"] | None]:
    r"""The nearest point to $X - lr\,\Omega X$, with $\Omega X = D - X D^\top X$.

    The singular values of the tangent step lie between 1 and a bound, since $\Omega X$ is tangent.
    Where the bound is large, Newton-Schulz steps, scaled for what is left of that interval, bring
    them together, as many as a matrix needs; then four terms of $(Y^\top Y)^{-1/2}$ do, or fewer
    where a short step needs no more. Its own Gram matrix makes the result orthogonal whatever `X`
    had lost.

    Args:
        X: Points.
        D: Directions.
        lr: Step size; on CUDA it may be a float64 there.
        tangent: Also give the tangent part of `D`, $D - X\,\mathrm{sym}(X^\top D)$: on a square
            matrix it is half of $\Omega X$.

    Returns:
        The new points, and the tangent parts if asked for.
    """
    if X.device.type == "cpu":
        assert not isinstance(lr, Tensor)
        if len(X) > 1:
            return step_on_host(X, D, lr, tangent)
        y, t = step_on_host(X[0], D[0], lr, tangent)
        return y[None], None if t is None else t[None]
    coarse = is_coarse(X)
    if not coarse and is_faster(X):
        return _step_of_parts(X, D, lr, tangent=tangent)
    with nullcontext() if coarse else full_precision():
        S = X.mT @ D
        R = torch.baddbmm(D, X, S.mT, alpha=-1)
        T = None
        if tangent:
            square = X.shape[-2] == X.shape[-1]
            T = R / 2 if square else tangent_part(X, D, S)
        if not coarse:
            return _retracted(X, R, D, lr), T
    with full_precision():
        return _retracted(X, R, D, lr), T


def _step_of_parts(
    X: Tensor, D: Tensor, lr: float | Tensor, *, tangent: bool
) -> tuple[Tensor, Tensor | None]:
    """The same on CUDA by products of float16 parts, which are as exact as float32."""
    from ..kernels._polar_parts_triton import Limits
    from ..kernels._polar_parts_triton import polar_step as step

    lr = lr if isinstance(lr, Tensor) else on_device(lr, X.device)
    limits = Limits(LONGEST, _longest_for_one_term(X), _intervals(X.dtype, X.device), WIDEST)
    with on(X.device):
        return step(X, D, lr, limits, tangent=tangent)


def _longest_for_one_term(X: Tensor) -> float:
    """Largest norm of P for which one term of the series is enough."""
    return math.sqrt(8 / 3 * _allowed(X))


def _allowed(X: Tensor) -> float:
    """The largest next term of a series that ends early."""
    return ERROR[X.dtype] * math.sqrt(X.shape[-1])


def step_on_host(
    X: Tensor,
    D: Tensor,
    lr: float,
    tangent: bool,
    out: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Float[Tensor, "*n d k"], Float[Tensor, "*n d k"] | None]:
    """`polar_step` on a CPU, which sees how long a step is; a single matrix may come as one.

    For that torch has faster products than for a batch of one. The results may come in `out`,
    which may be `X` and `D`.
    """
    if not is_exact(X):
        with full_precision():
            return _step_on_host(X, D, lr, tangent, out)
    return _step_on_host(X, D, lr, tangent, out)


def _step_on_host(
    X: Tensor, D: Tensor, lr: float, tangent: bool, outs: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    one, (out, out_tangent) = X.ndim == 2, outs
    multiply, add = (torch.mm, torch.addmm) if one else (torch.bmm, torch.baddbmm)
    S = multiply(X.mT, D)
    # A wide weight lies transposed, and so should R: a pass over two layouts takes longer.
    R = add(D, X, S.mT, alpha=-1, out=torch.empty_like(X) if one else None)
    Y = _walked(X, R, D, lr)
    T = None
    if tangent:
        square = X.shape[-2] == X.shape[-1]
        T = torch.mul(R, 0.5, out=out_tangent) if square else tangent_part(X, D, S, out_tangent)
    return _nearest_on_host(X, Y, out), T


def _walked(X: Tensor, R: Tensor, D: Tensor, lr: float) -> Tensor:
    """X - lr R, cut to `LONGEST` if it is longer."""
    short = lr * SHORTEST[X.dtype] <= 1  # whatever has a norm of zero is
    if short:
        short = lr * float(torch.linalg.vector_norm(D)) <= LONGEST
    return X.sub(R, alpha=lr) if short else _cut_step(X, R, D, lr)


def _nearest_on_host(X: Tensor, Y: Tensor, out: Tensor | None = None) -> Tensor:
    """The polar factor of tangent steps from X, with the terms of the series that they need."""
    one = X.ndim == 2
    multiply, add = (torch.mm, torch.addmm) if one else (torch.bmm, torch.baddbmm)
    P = multiply(Y.mT, Y)
    P.diagonal(0, -2, -1).sub_(1)
    norm = torch.linalg.vector_norm
    size = float(norm(P) if one else norm(P, dim=(-2, -1)).max())
    allowed = _allowed(X)
    if 3 / 8 * size**2 <= allowed:
        return add(Y, Y, P, alpha=-0.5, out=out)
    if 5 / 16 * size**3 <= allowed:
        return add(Y, Y, add(P, P, P, beta=-0.5, alpha=3 / 8), out=out)
    if 63 / 256 * size**5 <= allowed:
        P2 = multiply(P, P)
        V = (P2 * (35 / 128)).sub_(P, alpha=5 / 16)
        return add(Y, Y, add((P2 * (3 / 8)).sub_(P, alpha=1 / 2), P2, V), out=out)
    Y = _nearest_of_one(X, Y, P) if one else _nearest(X, Y, P)
    return Y if out is None else out.copy_(Y)


def _nearest_of_one(X: Tensor, Y: Tensor, P: Tensor) -> Tensor:
    """`_nearest` for one matrix on a CPU, with numbers of the host; P is overwritten."""
    lows, factors = _intervals(Y.dtype, Y.device).tolist()
    P2 = P @ P
    bound = math.sqrt(float(torch.linalg.vector_norm(P2)))
    if bound > WIDEST:
        cut = WIDEST / bound
        Y, P, P2, bound = torch.lerp(X, Y, math.sqrt(cut)), P * cut, P2 * cut**2, WIDEST
    low = 1 / math.sqrt(1 + bound)
    start = max(bisect_right(lows, low) - 1, 0)
    c = math.sqrt(2 / (2 + bound))
    if start < len(lows) - 1:
        for r, factor in enumerate(factors[start:-1]):
            low *= factor
            G = Y.mT @ Y if r else P
            if not r:
                G.diagonal().add_(1)
            Y = torch.addmm(Y, Y, G, beta=1.5, alpha=-0.5 * low**2)
        P = Y.mT @ Y
        P.diagonal().sub_(1)
        P2 = P @ P
        c = low / math.sqrt((1 + lows[-1] ** 2) / 2)
    more = c**2 - 1
    Q, Q2 = P.mul_(c**2), P2.mul_(c**4)
    Q2.add_(Q, alpha=2 * more)
    Q.diagonal().add_(more)
    Q2.diagonal().add_(more**2)
    T = (Q2 * (3 / 8)).add_(Q, alpha=-1 / 2).addmm_(Q2, Q.mul_(-5 / 16).add_(Q2, alpha=35 / 128))
    return torch.addmm(Y, Y, T, beta=c, alpha=c)


def nearest_along(
    X: Float[Tensor, "*n d k"], R: Float[Tensor, "*n d k"], lr: float | Tensor
) -> Float[Tensor, "*n d k"]:
    """The nearest points to X - lr R, where R is a skew matrix times X.

    Such a direction is tangent whatever it is made from, so that its own length alone is cut. On a
    CPU a single matrix may come as one.
    """
    with full_precision():
        if X.device.type == "cpu":
            return _nearest_on_host(X, _walked(X, R, R, float(lr)))
        return _retracted(X, R, R, lr)


def _retracted(X: Tensor, R: Tensor, D: Tensor, lr: float | Tensor) -> Tensor:
    """The nearest point to X - lr R on CUDA, where the device finds out how long a step is."""
    longest = _longest_for_one_term(X)
    if not has_kernel(X):
        Y = _cut_step(X, R, D, lr)
        P = _gram(Y)
        return _nearest(X, Y, P, frobenius(P) > longest)
    from ..kernels._polar_triton import cut_of, inverse_root_series

    lr = lr if isinstance(lr, Tensor) else on_device(lr, X.device)
    Y = torch.empty(X.shape, dtype=X.dtype, device=X.device)
    with on(X.device):
        cut_of(Y, X, R, (frobenius(R), frobenius(D)), lr, LONGEST)({}, 0)
        P = _gram(Y)
        intervals = _intervals(X.dtype, X.device)
        T = inverse_root_series(X, Y, P, frobenius(P) > longest, intervals, WIDEST)
    return torch.baddbmm(Y, Y, T)


def _cut_step(X: Tensor, R: Tensor, D: Tensor, lr: float | Tensor) -> Tensor:
    """X - lr R, cut to `LONGEST`."""
    most = torch.finfo(X.dtype).max
    largest = D.abs().amax((-2, -1)).double()  # whose square may vanish
    longer = torch.maximum(frobenius(R), frobenius(D)).maximum(largest).clamp_(min=LONGEST / most)
    length = (LONGEST / longer).clamp_(max=lr)
    return X - R * length.to(X.dtype)[..., None, None]


def _gram(Y: Tensor) -> Tensor:
    P = Y.mT @ Y
    P.diagonal(dim1=-2, dim2=-1).sub_(1)
    return P


def _nearest(X: Tensor, Y: Tensor, P: Tensor, long: Tensor | None = None) -> Tensor:
    r"""The polar factor of tangent steps from X, given $P = Y^\top Y - I$.

    Of a longer one than `WIDEST` allows the part $X + c(Y - X)$ is taken, for which P is $c^2P$.
    Those that are not `long` take one term of the series: for them $P^2$ counts as zero.
    """
    lows, factors = _intervals(Y.dtype, Y.device)
    last = len(lows) - 1
    if long is None:
        P2 = P @ P
    else:
        P2 = torch.zeros_like(P)
        multiply_where_(P2, P, P, long)
    bound = frobenius(P2).sqrt()  # of the norm of P
    cut = (WIDEST / bound).clamp(max=1).to(Y.dtype)[:, None, None]
    Y = torch.lerp(X, Y, cut.sqrt())
    P, P2, bound = P * cut, P2 * cut.square(), bound.clamp(max=WIDEST)
    low = (1 + bound).rsqrt()
    start = (torch.bucketize(low, lows, right=True) - 1).clamp(min=0)
    needed = last - start
    c = (2 / (2 + bound)).sqrt()  # puts the interval's middle to 1
    rounds = num_rounds(needed, last, Y)
    if rounds:
        # low Y has its singular values in [low, 1]; the rounds' own factors wait for the end.
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


@cache
def _intervals(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The lower ends of the intervals [l, 1] that the rounds go through, and their factors.

    The cubic $1.5x - 0.5x^3$ at x = a s takes the interval [l, 1] of s to [l', 1] with the largest
    l' when it has equal values at both ends: $a^2 = 3 / (1 + l + l^2)$.
    """
    low = 1 / math.sqrt(1 + WIDEST)
    rows = []
    while (1 - low**2) / (1 + low**2) > WIDTH[dtype]:
        a = math.sqrt(3 / (1 + low + low**2))
        rows.append((low, a))
        low = 1.5 * a * low - 0.5 * (a * low) ** 3
    return torch.tensor([*rows, (low, 1.0)], dtype=torch.float64).T.contiguous().to(device)
