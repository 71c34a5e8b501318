r"""The exact step of small weights to the nearest point, in one launch, a program per matrix.

A program takes the whole step of one (d, k) matrix with k <= 64. It holds
the (k, k) matrices in registers. It passes over the rows three times: for $S = X^\top D$; for the
tangent step $Y = X - c(D - XS^\top)$, its Gram matrix and the momentum; for the new point. All
iterates from Y to its polar factor are Y times a polynomial in $P = Y^\top Y - I$, so the program
computes only (k, k) matrices, and as many as its matrix needs. After a long step it passes over the
new point twice more and corrects it by its Gram matrix. The products are of TF32 triples, as exact
as float32 and much faster.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import torch
import triton
import triton.language as tl

from .._runtime._device_triton import choose, is_live, raise_flag
from .._runtime._launch_triton import Launch, Launches, shared_memory
from .._runtime._operands_triton import Operands, common_arguments
from ..rotate_blocks._exponential_triton import product
from ..update import LARGEST_GRADIENT, Update
from . import limits

ROWS = 64
"""Rows that a program reads at a time; GPUs with little shared memory read half as many."""

MUCH_SHARED = 1 << 17
"""Bytes of shared memory for 64 rows of 64 columns."""

SMALLEST_SUM, LARGEST_SUM = tl.constexpr(1e-20), tl.constexpr(1e36)
"""Bounds on sums of squares of a direction: outside of them some squares may have underflowed or
overflowed."""

SMALLEST = tl.constexpr(2.0**-126)
LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
USABLE = tl.constexpr(LARGEST_GRADIENT[torch.float32])


@triton.jit
def _load_direction(
    G_ptr, M_ptr, at_g, at_m, mask, mu, scale, HAS_M: tl.constexpr, MAXIMIZE: tl.constexpr
):
    """`update.direction` of a tile, times a scale; without Nesterov it is the new momentum."""
    D = tl.load(G_ptr + at_g, mask=mask, other=0.0).to(tl.float32)
    if MAXIMIZE:
        D = -D
    if HAS_M:
        D = mu * tl.load(M_ptr + at_m, mask=mask, other=0.0) + D
    return D * scale


@triton.jit
def _multiply_by_point(
    X_ptr, G_ptr, M_ptr, end, k, stride_x, stride_g, stride_m, mu, scale,
    HAS_M: tl.constexpr, MAXIMIZE: tl.constexpr, K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    r"""$S = X^\top D$ and the sum of the squares of D, for the direction times a scale."""
    cols = tl.arange(0, K).to(tl.int64)[None, :]
    S = tl.zeros((K, K), tl.float32)
    squares = tl.zeros((BLOCK_D, K), tl.float32)
    for start in range(0, end, BLOCK_D):
        rows = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[:, None]
        mask = (rows < end) & (cols < k)
        at_g = rows * stride_g[1] + cols * stride_g[2]
        at_m = rows * stride_m[1] + cols * stride_m[2]
        D = _load_direction(G_ptr, M_ptr, at_g, at_m, mask, mu, scale, HAS_M, MAXIMIZE)
        X = tl.load(X_ptr + rows * stride_x[1] + cols * stride_x[2], mask=mask, other=0.0)
        S += product(tl.trans(X), D)
        squares += D * D
    return S, _sum(squares)


@triton.jit
def _find_largest(
    G_ptr, M_ptr, end, k, stride_g, stride_m, mu,
    HAS_M: tl.constexpr, MAXIMIZE: tl.constexpr, K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The largest entry of the direction; infinity if one of them is NaN or too large."""
    cols = tl.arange(0, K).to(tl.int64)[None, :]
    largest = tl.zeros((BLOCK_D, K), tl.float32)
    for start in range(0, end, BLOCK_D):
        rows = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[:, None]
        mask = (rows < end) & (cols < k)
        at_g = rows * stride_g[1] + cols * stride_g[2]
        at_m = rows * stride_m[1] + cols * stride_m[2]
        D = tl.abs(_load_direction(G_ptr, M_ptr, at_g, at_m, mask, mu, 1.0, HAS_M, MAXIMIZE))
        largest = tl.maximum(largest, tl.where(D <= USABLE, D, float("inf")))
    return tl.max(tl.max(largest, axis=1), axis=0)


@triton.jit
def _sum(A):
    return tl.sum(tl.sum(A, axis=1), axis=0)


@triton.jit
def _inverse_root(P, eye, low, WIDTH: tl.constexpr, K: tl.constexpr):
    r"""$(I + P)^{-1/2} - I$ for eigenvalues of I + P between 1 and $1 / low^2$, and the rounds.

    A Newton-Schulz step works on $A = I + Q$, which is $Y^\top Y$ at the start: it multiplies Y by
    $I - \frac12Q$, and Q becomes $-\frac14Q^2(3I - Q)$. Before each step A is scaled as the
    reference does: the cubic then takes the singular values from [low, 1] to the narrowest interval
    [low', 1]. The product of all factors is $z(I + N)$.
    """
    N = tl.zeros((K, K), tl.float32)
    Q = P
    z = 1.0
    scale = low * low  # brings the eigenvalues of A into [low^2, 1]
    rounds = 0
    while 1.0 - low * low > WIDTH * (1.0 + low * low):
        a = tl.sqrt(3.0 / (1.0 + low + low * low))
        s = scale * a * a
        z *= tl.sqrt(s)
        Q = s * Q + (s - 1.0) * eye
        N -= 0.5 * (Q + product(N, Q))
        Q = product(product(Q, Q), 0.25 * Q - 0.75 * eye)
        low = a * low * (1.5 - 0.5 * a * a * low * low)
        scale = 1.0
        rounds += 1
    s = scale * 2.0 / (1.0 + low * low)  # puts the interval's middle to 1
    z *= tl.sqrt(s)
    Q = s * Q + (s - 1.0) * eye
    Q2 = product(Q, Q)
    W = 0.375 * Q2 - 0.5 * Q + product(Q2, (35 / 128) * Q2 - (5 / 16) * Q)
    N += W + product(N, W)
    return (z - 1.0) * eye + z * N, rounds


@triton.jit
def _step(
    X_ptr,
    G_ptr,
    M_ptr,
    P_ptr,
    Y_ptr,
    table_ptr,
    flags_ptr,
    live_ptr,
    scale: tl.float64,
    momentum: tl.float64,
    n,
    d,
    k,
    stride_x,
    stride_g,
    stride_m,
    stride_p,
    stride_y,
    G_TYPE: tl.constexpr,
    P_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HAS_M: tl.constexpr,
    HAS_P: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    LONGEST: tl.constexpr,
    WIDEST: tl.constexpr,
    WIDTH: tl.constexpr,
    ERROR: tl.constexpr,
    K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    matrix = tl.program_id(0)
    param, b = matrix // n, (matrix % n).to(tl.int64)
    if is_live(live_ptr, param) == 0:
        return
    X_ptr = choose(X_ptr, table_ptr, param, 0, tl.float32, ALIGNED) + b * stride_x[0]
    G_ptr = choose(G_ptr, table_ptr, param, 1, G_TYPE, ALIGNED) + b * stride_g[0]
    if HAS_M:
        M_ptr = choose(M_ptr, table_ptr, param, 2, tl.float32, ALIGNED) + b * stride_m[0]
    if HAS_P:
        P_ptr = choose(P_ptr, table_ptr, param, 3, P_TYPE, ALIGNED) + b * stride_p[0]
    Y_ptr += matrix.to(tl.int64) * d * k
    mu = tl.full((), momentum, tl.float32)
    cols = tl.arange(0, K).to(tl.int64)[None, :]

    S, total = _multiply_by_point(
        X_ptr, G_ptr, M_ptr, d, k, stride_x, stride_g, stride_m, mu, 1.0,
        HAS_M, MAXIMIZE, K, BLOCK_D,
    )  # fmt: skip
    unit = tl.full((), 1.0, tl.float32)
    if ((total > SMALLEST_SUM) & (total < LARGEST_SUM)) == 0:
        # Zero, tiny, huge or not finite: compute it again in units of the largest entry.
        unit = _find_largest(
            G_ptr, M_ptr, d, k, stride_g, stride_m, mu, HAS_M, MAXIMIZE, K, BLOCK_D
        )
        unit = tl.maximum(unit, SMALLEST)
        S, total = _multiply_by_point(
            X_ptr, G_ptr, M_ptr, d, k, stride_x, stride_g, stride_m, mu, 1.0 / unit,
            HAS_M, MAXIMIZE, K, BLOCK_D,
        )  # fmt: skip
    size_s = _sum(S * S)
    usable = (unit < float("inf")) & (size_s < float("inf"))
    # |D - X S^T|^2 for orthonormal X.
    size_r = total + size_s - 2.0 * _sum(S * tl.trans(S))
    size = tl.sqrt(tl.maximum(total, size_r)).to(tl.float64)
    longest = LONGEST / tl.maximum(size, LONGEST / LARGEST)
    length = tl.minimum(tl.full((), -scale, tl.float64) * unit, longest).to(tl.float32)

    end = tl.where(usable, d, 0)  # a matrix that the step would spoil is not written
    both = 0.5 * (S + tl.trans(S))
    P = tl.zeros((K, K), tl.float32)
    for start in range(0, end, BLOCK_D):
        rows = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[:, None]
        mask = (rows < end) & (cols < k)
        at_g = rows * stride_g[1] + cols * stride_g[2]
        at_m = rows * stride_m[1] + cols * stride_m[2]
        D = _load_direction(G_ptr, M_ptr, at_g, at_m, mask, mu, 1.0 / unit, HAS_M, MAXIMIZE)
        X = tl.load(X_ptr + rows * stride_x[1] + cols * stride_x[2], mask=mask, other=0.0)
        if HAS_M:  # the momentum keeps only its tangent part
            tl.store(M_ptr + at_m, (D - product(X, both)) * unit, mask=mask)
        Y = X - length * (D - product(X, tl.trans(S)))
        tl.store(Y_ptr + rows * stride_y[0] + cols * stride_y[1], Y, mask=mask)
        P += product(tl.trans(Y), Y)
    tl.debug_barrier()  # the next pass reads values that other threads wrote

    lane = tl.arange(0, K)
    eye = ((lane[:, None] == lane[None, :]) & (lane < k)[:, None]).to(tl.float32)
    P -= eye
    N = -0.5 * P
    cut = tl.full((), 1.0, tl.float32)
    rounds = 0
    # A series of one term leaves 3/8 P^2, and that may be as large as in the reference.
    if 0.375 * _sum(P * P) > ERROR * tl.sqrt(tl.full((), k, tl.float32)):
        P2 = product(P, P)
        bound = tl.sqrt(tl.sqrt(_sum(P2 * P2)))  # of the norm of P
        cut = tl.where(bound > WIDEST, WIDEST / bound, 1.0)
        low = 1.0 / tl.sqrt(1.0 + tl.minimum(bound, WIDEST))
        N, rounds = _inverse_root(P * cut, eye, low, WIDTH, K)
    finite = _sum(N * N) < float("inf")
    raise_flag(flags_ptr, param, (usable & finite) == 0)
    end = tl.where(finite, end, 0)

    weight = tl.sqrt(cut)
    end_cut = tl.where(cut < 1.0, end, 0)  # only a step that is cut needs the old point
    for start in range(0, end, BLOCK_D):
        rows = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[:, None]
        mask = (rows < end) & (cols < k)
        at = rows * stride_x[1] + cols * stride_x[2]
        Y = tl.load(Y_ptr + rows * stride_y[0] + cols * stride_y[1], mask=mask, other=0.0)
        X = tl.load(X_ptr + at, mask=(rows < end_cut) & (cols < k), other=0.0)
        Y = tl.where(cut < 1.0, X + weight * (Y - X), Y)
        Y += product(Y, N)
        tl.store(X_ptr + at, Y, mask=mask)
        if HAS_P:
            at_p = rows * stride_p[1] + cols * stride_p[2]
            tl.store(P_ptr + at_p, Y.to(P_TYPE), mask=mask)

    if rounds > 0:  # rounding has grown with the step
        tl.debug_barrier()
        P = tl.zeros((K, K), tl.float32)
        for start in range(0, end, BLOCK_D):
            rows = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[:, None]
            mask = (rows < end) & (cols < k)
            at = rows * stride_x[1] + cols * stride_x[2]
            X = tl.load(X_ptr + at, mask=mask, other=0.0)
            P += product(tl.trans(X), X)
        P -= eye
        tl.debug_barrier()
        for start in range(0, end, BLOCK_D):
            rows = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[:, None]
            mask = (rows < end) & (cols < k)
            at = rows * stride_x[1] + cols * stride_x[2]
            X = tl.load(X_ptr + at, mask=mask, other=0.0)
            X -= 0.5 * product(X, P)
            tl.store(X_ptr + at, X, mask=mask)
            if HAS_P:
                at_p = rows * stride_p[1] + cols * stride_p[2]
                tl.store(P_ptr + at_p, X.to(P_TYPE), mask=mask)


def plan_small_polar(
    operands: Operands,
    update: Update,
    **tuning: int,
) -> Launches:
    """The launch of an exact step, in place, on all parameters of one shape at once.

    Args:
        operands: The tensors; the points are float32 with few columns.
        update: Switches of the step; its numbers are given at each launch.
        **tuning: Overrides of the launch: `block_d`, `warps`, `stages`.

    Raises:
        ValueError: If the points are not float32, or with Nesterov's momentum.
    """
    X = operands.Xs[0]
    _, d, k = X.shape
    if X.dtype != torch.float32 or update.nesterov:
        raise ValueError(
            "the CUDA kernel of small exact steps needs float32 points and no Nesterov momentum: "
            f"got {X.dtype}, nesterov={update.nesterov}."
        )
    K = max(16, triton.next_power_of_2(k))
    rows = ROWS if K < 64 or shared_memory(X.device) >= MUCH_SHARED else ROWS // 2
    block_d = tuning.get("block_d", max(16, min(rows, triton.next_power_of_2(d))))
    Y = X.new_empty(operands.num_matrices * d * k)
    arguments = {
        **common_arguments(operands, update),
        "Y_ptr": Y,
        "stride_y": (k, 1) if X.stride(-1) == 1 else (1, d),  # as the points, for wide loads
        "LONGEST": limits.LONGEST,
        "WIDEST": limits.WIDEST,
        "WIDTH": limits.WIDTH[X.dtype],
        "ERROR": limits.ERROR[X.dtype],
        "K": K,
        "BLOCK_D": block_d,
    }
    launch = Launch(
        _step,
        operands.num_matrices,
        arguments,
        num_warps=tuning.get("warps", 4),
        num_stages=tuning.get("stages", 1),
    )
    return Launches(X.device, 1.0, [launch], [Y, *operands.kept], operands.table, operands.wide)
