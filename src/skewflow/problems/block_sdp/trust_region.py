"""Steps of a preconditioned Riemannian trust region (Absil, Baker, Gallivan 2007)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from . import cpu
from .point import Point
from .reference import Array

if TYPE_CHECKING:
    from .cost import Cost

MOST_PRODUCTS = 300
"""Products with the Hessian in one step at most."""


class Region:
    """A trust region whose radius adapts; lengths are in the norm of the preconditioner."""

    def __init__(self) -> None:
        self.radius = math.inf
        self.products = 0

    def step(self, cost: Cost, point: Point, solve: Callable[[Array], Array]) -> Point | None:
        """Minimise the quadratic model and move; None if the objective would not fall."""

        def precondition(R: Array) -> Array:
            Z = solve(R)
            cpu.to_tangent(Z, point.Y)
            return Z

        V, HV, length, cut = self._model(cost, point, precondition)
        Y = point.Y + V
        cpu.retract(Y)
        move = Y - point.Y
        C_move = cost.apply(move)
        # Differences of the two values would drown in rounding near the optimum.
        gain = -float(np.vdot(move, 2 * point.CY + C_move))
        predicted = -float(np.vdot(V, 2 * point.gradient + HV))
        ratio = gain / predicted if predicted > 0 else -1.0
        if ratio < 0.25:
            self.radius = 0.25 * length
        elif ratio > 0.75 and cut:
            self.radius *= 2
        return Point(cost, Y) if ratio > 0.1 else None

    def _model(
        self, cost: Cost, point: Point, precondition: Callable[[Array], Array]
    ) -> tuple[Array, Array, float, bool]:
        """Truncated conjugate gradients: the step, its image, its length, whether it was cut."""
        V, HV, R = np.zeros_like(point.Y), np.zeros_like(point.Y), point.gradient.copy()
        Z = precondition(R)
        zr = float(np.vdot(Z, R))
        P, vv, vp, pp = -Z, 0.0, 0.0, zr
        goal = 0.05 * float(np.linalg.norm(R))
        if not zr > 0:  # the gradient is zero, or its square is
            return V, HV, 0.0, False
        for _ in range(MOST_PRODUCTS):
            HP = point.hessian(cost, P)
            self.products += 1
            curvature = float(np.vdot(P, HP))
            alpha = zr / curvature if curvature > 0 else math.inf
            longer = vv + 2 * alpha * vp + alpha * alpha * pp
            if not longer < self.radius**2:
                if self.radius == math.inf:
                    self.radius = 2 * math.sqrt(max(vv, pp))
                far = (-vp + math.sqrt(vp * vp + pp * max(self.radius**2 - vv, 0.0))) / pp
                return V + far * P, HV + far * HP, self.radius, True
            vv = longer
            V, HV, R = V + alpha * P, HV + alpha * HP, R + alpha * HP
            if np.linalg.norm(R) <= goal:
                break
            Z = precondition(R)
            zr, before = float(np.vdot(Z, R)), zr
            if not zr > 0:
                break
            beta = zr / before
            P, vp, pp = beta * P - Z, beta * (vp + alpha * pp), zr + beta * beta * pp
        return V, HV, math.sqrt(vv), False
