"""A point of the factorised program with its derivatives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .reference import Array

if TYPE_CHECKING:
    from .cost import Cost


class Point:
    """Y on the product of Stiefel manifolds, C Y, the multipliers and the gradient."""

    def __init__(self, cost: Cost, Y: Array, CY: Array | None = None) -> None:
        from . import cpu

        self.Y = Y
        self.CY = cost.apply(Y) if CY is None else CY
        self.multipliers = np.empty((cost.n, cost.p, cost.p))
        cpu.multipliers(self.CY, Y, self.multipliers)
        self.value = math.fsum(np.trace(self.multipliers, axis1=1, axis2=2))
        self.gradient = self.CY.copy()
        cpu.to_tangent(self.gradient, Y)
        self.slope = float(np.linalg.norm(self.gradient)) / math.sqrt(cost.n * cost.p)
        """Norm of the gradient of <C, Y Yᵀ> / 2 per row of Y: an eigenvalue scale."""

    def hessian(self, cost: Cost, V: Array) -> Array:
        """The Riemannian Hessian of <C, Y Yᵀ> / 2 along a tangent V."""
        from . import cpu

        W = cost.apply(V)
        cpu.add_blocks(-self.multipliers, V, W)
        cpu.to_tangent(W, self.Y)
        return W

    def shift(self, amount: float) -> Array:
        """The blocks D = amount I - multipliers, so that C + D is the shifted dual matrix."""
        return amount * np.eye(self.multipliers.shape[-1]) - self.multipliers
