r"""A second-order splitting of the flow over a non-intersecting family (not in the paper)."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.precision import no_autocast
from ..geometry.retractions import expm
from ..tournaments.families import non_intersecting
from ..tournaments.partitions import Partition
from .fields import Field
from .integrate import check_field
from .trajectory import Trajectory, check_start, march


@no_autocast()
def integrate_strang(
    field: Field,
    X0: Float[Tensor, "*batch d k"],
    eta: float,
    num_steps: int,
    *,
    block_size: int = 2,
    t0: float = 0.0,
    record_every: int | None = None,
) -> Trajectory:
    r"""Integrate a field by symmetric splitting over a family, to second order (not in the paper).

    A non-intersecting family $T_1, ..., T_n$ splits the generator, $\Omega = \sum_r \Omega[T_r]$
    (Sec. 3.2). A step integrates $X' = \Omega[T_r](X) X$ for $\eta/2$ in the order 1, ..., n and
    again in the order n, ..., 1 (Strang), each by the explicit midpoint rule, so its error is
    $O(\eta^3)$. The time argument of the field is the middle of the step. Nothing is random: it is
    a sweep without replacement, made symmetric.

    Args:
        field: The generator for each time and point; evaluated 4n times per step.
        X0: Starting points with orthonormal columns; a batch is integrated at once.
        eta: Step size.
        num_steps: Number of steps.
        block_size: 2, or a size for which `non_intersecting` has a family.
        t0: Time at the start.
        record_every: Interval, in steps, of the recorded points, which then include the start; None
            records the last point only.

    Example:
        >>> from skewflow.flows import sorting_field
        >>> q = torch.tensor([3.0, 9.0, 5.0, 1.0])
        >>> X0 = torch.linalg.qr(torch.ones(4, 4).tril())[0]
        >>> X = integrate_strang(sorting_field(q), X0, 0.05, 100).last
        >>> (X.square().mT @ q).round(decimals=3)
        tensor([9., 5., 3., 1.])
    """
    check_field(field)
    check_start(X0, field.side, eta, num_steps, record_every)
    family = list(non_intersecting(X0.shape[-2], block_size))

    def step(t: float, X: Tensor) -> Tensor:
        for T in (*family, *reversed(family)):
            middle = _rotate_blocks(X, field(t + eta / 2, X), T, eta / 4, field.side)
            X = _rotate_blocks(X, field(t + eta / 2, middle), T, eta / 2, field.side)
        return X

    with torch.no_grad():
        return march(step, X0, eta, num_steps, t0, record_every)


def _rotate_blocks(
    X: Float[Tensor, "*batch d k"],
    omega: Float[Tensor, "*batch d d"],
    partition: Partition,
    eta: float,
    side: str,
) -> Float[Tensor, "*batch d k"]:
    """The points with the blocks of one partition rotated, the same partition for the batch."""
    rows = X.clone() if side == "left" else X.mT.clone()
    signed = eta if side == "left" else -eta
    for b in partition.blocks:
        if b.shape[1] > 1:
            b = b.to(X.device)
            R = expm(signed * omega[..., b[:, :, None], b[:, None, :]])  # (*batch, l, s, s)
            rows[..., b, :] = R @ rows[..., b, :]
    return rows if side == "left" else rows.mT
