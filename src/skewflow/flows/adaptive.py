r"""Adaptive steps: an embedded Runge-Kutta-Munthe-Kaas pair (not in the paper)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.precision import no_autocast
from ..geometry.retractions import expm
from .fields import Field
from .integrate import check_field
from .trajectory import Trajectory, check_start

NODES = ((0.5, (0.5,)), (0.75, (0.0, 0.75)), (1.0, (2 / 9, 1 / 3, 4 / 9)))
"""The 3(2) pair of Bogacki and Shampine: time and weights of each stage after the first."""

ERROR = (-5 / 72, 1 / 12, 1 / 9, -1 / 8)
"""Weights of the third-order result minus those of the second-order one, up to the sign."""

LARGEST_CHANGE = 5.0
"""Largest factor between the sizes of two successive steps, the usual safeguard."""


@no_autocast()
def integrate_adaptive(
    field: Field,
    X0: Float[Tensor, "*batch d k"],
    duration: float,
    *,
    tolerance: float,
    first_step: float | None = None,
    t0: float = 0.0,
    max_steps: int = 100_000,
) -> Trajectory:
    r"""Integrate a field with steps chosen by the error, to third order (not in the paper).

    Within a step $X(t) = \exp(u(t)) X_0$, and u solves
    $u' = \Omega - \frac12[u, \Omega] + \frac1{12}[u, [u, \Omega]] + \dots$ in the linear space
    Sk(d), where the 3(2) pair of Bogacki and Shampine applies (Munthe-Kaas 1999). The point stays
    orthogonal for any step size. A step is accepted if its two results differ by at most
    `tolerance` in the Frobenius norm for every matrix of the batch, so the worst matrix determines
    the step size of the batch. Each step costs three generators and three exponentials.

    Args:
        field: The generator for each time and point.
        X0: Starting points with orthonormal columns; a batch is integrated at once.
        duration: Length of the time interval; a negative one goes back in time.
        tolerance: Largest local error of a step.
        first_step: Size of the first step; a hundredth of `duration` when omitted.
        t0: Time at the start.
        max_steps: Largest number of steps, accepted or not.

    Returns:
        The start and the point after each accepted step.

    Example:
        >>> turn = Field(lambda t, X: torch.tensor([[0.0, 2 * t], [-2 * t, 0.0]]))
        >>> path = integrate_adaptive(turn, torch.eye(2), 1.0, tolerance=1e-4)
        >>> path.last  # by the angle 1
        tensor([[ 0.5403,  0.8415],
                [-0.8415,  0.5403]])
    """
    check_field(field)
    h = duration / 100 if first_step is None else first_step
    check_start(X0, field.side, h, max_steps, None)
    if not tolerance > 0:
        raise ValueError(f"`tolerance` must be positive: got {tolerance}. Try 1e-6.")
    if not math.isfinite(duration) or duration * h <= 0:
        raise ValueError(
            f"`duration` must be finite, not zero, and of the sign of `first_step`: got duration="
            f"{duration}, first_step={h}."
        )
    end = t0 + duration
    times, points = [t0], [X0]
    with torch.no_grad():
        omega = field(t0, X0)
        for _ in range(max_steps):
            t, X = times[-1], points[-1]
            last = abs(end - t) <= abs(h)
            h = end - t if last else h
            candidate, omega_there, error = _step(field, t, X, omega, h)
            growth = 0.9 * (tolerance / error) ** (1 / 3) if error > 0 else LARGEST_CHANGE
            if error <= tolerance:
                times.append(end if last else t + h)
                points.append(candidate)
                omega = omega_there
                if last:
                    return Trajectory(torch.tensor(times, dtype=torch.float64), torch.stack(points))
            h *= min(LARGEST_CHANGE, max(1 / LARGEST_CHANGE, growth))
    raise RuntimeError(
        f"{max_steps} steps did not reach the end: got to t={times[-1]:.3g} of {end:.3g} with "
        f"steps of {h:.1e}. Raise `tolerance` or `max_steps`."
    )


def _step(
    field: Field, t: float, X: Tensor, omega: Tensor, h: float
) -> tuple[Tensor, Tensor, float]:
    """The point after a step, the generator there, and the largest error in the batch."""
    slopes, there, Y = [omega], omega, X
    for time, weights in NODES:
        u = h * sum((w * k for w, k in zip(weights, slopes, strict=True)), torch.zeros_like(omega))
        R = expm(u)
        Y = R @ X if field.side == "left" else X @ R
        there = field(t + time * h, Y)
        slopes.append(_pull_back(u, there, field.side))
    difference = h * sum(
        (w * k for w, k in zip(ERROR, slopes, strict=True)), torch.zeros_like(omega)
    )
    return Y, there, torch.linalg.matrix_norm(difference).max().item()


def _pull_back(u: Tensor, omega: Tensor, side: str) -> Tensor:
    """The slope of u in exp(u) X for the generator omega; the next term of the series vanishes."""
    bracket = u @ omega - omega @ u
    half = -0.5 if side == "left" else 0.5  # X exp(u) is the transpose of exp(-u) X^T
    return omega + half * bracket + (u @ bracket - bracket @ u) / 12
