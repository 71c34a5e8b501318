"""Running mean and variance that can be merged, by which observations are normalised."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from ..errors import CheckpointError, ShapeError

FLOOR = 1e-7
"""A deviation below this fraction of the mean (or of 1) is rounding, so the entry is constant."""


@dataclass(frozen=True, eq=False)
class Moments:
    r"""Count, mean and sum of squared deviations of vectors (not in the paper).

    Two of them merge into the moments of all vectors (Chan, Golub and LeVeque 1979), so each
    evaluation keeps its own moments and returns only these numbers. In floating point the result
    depends on the order: merge in the order of the tasks, not in the order of their arrival.

    Args:
        count: Number of vectors.
        mean: Their mean.
        squares: Sum of the squared deviations from it.

    Example:
        >>> a, b = Moments.of(np.array([[1.0], [2.0]])), Moments.of(np.array([[6.0]]))
        >>> both = a.merge(b)
        >>> both.count, both.mean.item(), both.squares.item()
        (3, 3.0, 14.0)
    """

    count: int
    mean: Float[np.ndarray, " n"]
    squares: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, rows: Float[np.ndarray, "t n"]) -> "Moments":
        """The moments of the rows of a matrix, in float64."""
        if rows.ndim != 2 or not len(rows):
            raise ShapeError(
                f"`rows` must be a matrix of at least one row: got shape {rows.shape}. "
                "Put one vector into each row."
            )
        wide = rows.astype(np.float64)
        mean = wide.mean(axis=0)
        return cls(len(wide), mean, np.square(wide - mean).sum(axis=0))

    def merge(self, other: "Moments") -> "Moments":
        """The moments of all vectors of `self` and `other`."""
        if self.mean.shape != other.mean.shape:
            raise ShapeError(
                "moments of vectors of one size can be merged: got sizes "
                f"{len(self.mean)} and {len(other.mean)}. Observations must not change their size."
            )
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        between = np.square(apart) * (self.count * other.count / count)
        return Moments(count, mean, self.squares + other.squares + between)

    def scale(self) -> Float[np.ndarray, " n"]:
        """One over the standard deviation of each entry; 0 for an entry that has not varied.

        A constant entry has no information. Divided by its rounding error it would be noise, and
        without normalisation it could be of any size once it varies.
        """
        deviation = np.sqrt(self.squares / self.count)
        varies = deviation > FLOOR * np.maximum(1.0, np.abs(self.mean))
        return np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0.0)

    def is_finite(self) -> bool:
        """Whether no vector had an entry that is NaN, infinite, or too large to be squared."""
        return bool(np.isfinite(self.mean).all() and np.isfinite(self.squares).all())

    def state_dict(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        mean, squares = torch.from_numpy(self.mean.copy()), torch.from_numpy(self.squares.copy())
        return {"count": self.count, "mean": mean, "squares": squares}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Moments":
        """The moments that `state_dict` returned."""
        try:
            return cls(state["count"], state["mean"].numpy(), state["squares"].numpy())
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"`state` must be what `Moments.state_dict` returned: {type(error).__name__} on "
                f"{error}. Take it from a checkpoint of this library."
            ) from error
