"""The result of an integrator, and the loop over fixed steps."""

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
"""Maps a time and the points at that time to the points after one step."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    r"""Points of a flow at some times (not in the paper).

    Args:
        times: Times (n,), in float64.
        points: Points (n, \*batch, d, k) at these times.

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
    """Take `num_steps` steps of size `eta` and record every `record_every`-th point and the last.

    The start is recorded too, unless `record_every` is None, which records the last point only.
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
    """Check the arguments that all integrators have in common."""
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
