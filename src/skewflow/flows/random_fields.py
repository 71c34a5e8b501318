r"""Random fields whose flows tend to Haar measure (Eq. 29)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..geometry.skew import Side
from .fields import Field


class GaussianField(Field):
    r"""A new Gaussian skew matrix at every call: $\Omega_{rand}$ of Eq. 29.

    The flow tends to Haar measure on the component of its start, because the determinant is
    constant; the paper says on all of O(d). Each entry has the standard deviation `scale`. With a
    step $\eta$ the angles are of size $\eta$ `scale`, and many small steps approximate a Brownian
    motion on SO(d).

    Args:
        scale: Standard deviation of an entry.
        generator: Source of randomness.
        side: "right" as in Eq. 29, or "left"; the law of the flow from I is the same.

    Example:
        >>> field = GaussianField(2.0, generator=torch.Generator().manual_seed(0))
        >>> A = field(0.0, torch.eye(4))
        >>> bool((A == -A.mT).all())
        True
    """

    def __init__(self, scale: float, *, generator: torch.Generator, side: Side = "right") -> None:
        _check_scale(scale)
        _validate.generator(generator)
        super().__init__(lambda t, X: scale * _skew_of(_normal(X, generator)), side)


class RandomWalkField(Field):
    r"""Entries that are random walks on the integers, with a step of +1 or -1 per call (Eq. 29).

    The paper names this field as an alternative. The entries above the diagonal are independent
    walks from 0, so after n calls they are of size $\sqrt n$; `integrate` makes one call per step.
    The walks have the batch dimensions of the first call.

    Args:
        scale: Size of one step of a walk.
        generator: Source of randomness.
        side: "right" as in Eq. 29, or "left".

    Example:
        >>> field = RandomWalkField(1.0, generator=torch.Generator().manual_seed(0))
        >>> _ = field(0.0, torch.eye(3))
        >>> sorted(set(field(0.0, torch.eye(3)).abs().flatten().tolist())) in ([0.0], [0.0, 2.0])
        True
    """

    def __init__(self, scale: float, *, generator: torch.Generator, side: Side = "right") -> None:
        _check_scale(scale)
        _validate.generator(generator)
        super().__init__(self._walk, side)
        self._scale = scale
        self._generator = generator
        self._position: Tensor | None = None

    def _walk(self, t: float, X: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d d"]:
        move = _skew_of(_normal(X, self._generator).sign())
        self._position = move if self._position is None else self._position + move
        return self._scale * self._position


def _normal(X: Float[Tensor, "*batch d k"], generator: torch.Generator) -> Tensor:
    shape = (*X.shape[:-1], X.shape[-2])
    return torch.randn(shape, generator=generator, device=generator.device, dtype=X.dtype).to(X)


def _skew_of(A: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    upper = A.triu(1)
    return upper - upper.mT


def _check_scale(scale: float) -> None:
    if not math.isfinite(scale) or scale <= 0:
        raise ValueError(f"`scale` must be positive and finite: got {scale}.")
