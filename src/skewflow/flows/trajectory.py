"""What an integrator returns, and the loop that all of them share."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import NonFiniteError
from ..geometry.checks import check_stiefel, require
from ..geometry.skew import Side, check_side

Step = Callable[[float, Float[Tensor, "*batch d k"]], Float[Tensor, "*batch d k"]]
"""From a time and the points there to the points one step on."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    r"""Points of a flow at some times (not in the paper).

    Args:
        times: When, (n,), in float64.
        points: Where, (n, \*batch, d, k).

    Example:
        >>> path = Trajectory(torch.tensor([0.0, 1.0]), torch.eye(3).expand(2, 3, 3))
        >>> path.last.shape
        torch.Size([3, 3])
    """

    times: Float[Tensor, "n"]
    points: Float[Tensor, "n *batch d k"]

    @property
    def last(self) -> Float[Tensor, "*batch d k"]:
        """The point at the end."""
        return self.points[-1]


def march(
    step: Step,
    X: Float[Tensor, "*batch d k"],
    eta: float,
    num_steps: int,
    t0: float,
    record_every: int | None,
) -> Trajectory:
    """`num_steps` steps of size `eta`: the start, every `record_every`-th point and the last.

    Only the last point is kept when `record_every` is None.
    """
    times, points = ([], []) if record_every is None else ([t0], [X])
    for i in range(num_steps):
        X = step(t0 + i * eta, X)
        done = i + 1
        if done == num_steps or (record_every is not None and done % record_every == 0):
            times.append(t0 + done * eta)
            points.append(X)
    return Trajectory(torch.tensor(times, dtype=torch.float64), torch.stack(points))


def check_start(
    X0: Float[Tensor, "*batch d k"],
    side: Side,
    eta: float,
    num_steps: int,
    record_every: int | None,
) -> None:
    """The arguments of every integrator with fixed steps, before anything is computed."""
    _validate.tall(X0, "X0")
    check_side(side, *X0.shape[-2:])
    require(check_stiefel(X0))
    if not math.isfinite(eta) or eta == 0:
        raise NonFiniteError(
            f"`eta` must be finite and not zero: got {eta}. A negative step goes back in time."
        )
    _validate.count(num_steps, "num_steps")
    if record_every is not None:
        _validate.count(record_every, "record_every")
