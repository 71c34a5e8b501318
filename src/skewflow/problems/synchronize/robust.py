"""Robust losses by iteratively reweighted least squares."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..block_sdp.reference import Array
from .pose_graph import PoseGraph

if TYPE_CHECKING:
    from .solve import Synchronization

ROUNDS = 50
"""Most rounds of reweighting."""

SETTLED = 1e-9
"""Relative decrease of the loss below which the rounds end."""

LEAST_WEIGHT = 1e-9
"""Weights are at least this, so that the graph stays connected."""


def reweighted(
    solve: Callable[..., Synchronization], graph: PoseGraph, start: Array, loss: Any, **options: Any
) -> Synchronization:
    """Minimise the sum of a loss of the residual norms.

    A loss that is concave in the squared residual lies below its tangent there, so that each
    weighted problem is an upper bound and the loss falls from round to round.
    """
    from .solve import residuals

    weights, before = np.ones(len(graph.edges)), math.inf
    result = solve(graph, start, weights, **options)
    for _ in range(ROUNDS):
        squares = residuals(graph, result.rotations, result.translations)
        value, weights = _majorise(loss, squares)
        if value >= before - SETTLED * abs(before):
            break
        before = value
        result = solve(graph, result.rotations, weights, **options)
    squares = residuals(graph, result.rotations, result.translations)
    value, _ = _majorise(loss, squares)
    return dataclasses.replace(result, value=value, bound=-math.inf, certified=False)


def _majorise(loss: Any, squares: Array) -> tuple[float, Array]:
    """The sum of the loss, and the derivative of each loss by its squared residual."""
    norms = torch.from_numpy(np.sqrt(np.maximum(squares, 1e-24))).requires_grad_()
    with torch.enable_grad():
        losses = loss(norms)
        if not (isinstance(losses, torch.Tensor) and losses.requires_grad):
            raise TypeError(
                "`loss` must be written with torch, as a function of its argument: got "
                f"{type(losses).__name__} without a derivative. Use e.g. `lambda e: e`."
            )
        total = losses.sum()
        (slope,) = torch.autograd.grad(total, norms)
    weights = (slope / (2 * norms)).detach().numpy()
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError(
            "`loss` must be finite and must not decrease: its derivative is between "
            f"{slope.min().item():g} and {slope.max().item():g} at the present residuals."
        )
    if not weights.any():
        raise ValueError(
            "`loss` must increase somewhere: it is flat at all of the present residuals, the "
            f"smallest of which is {norms.min().item():g}. Widen it, or give a better `initial`."
        )
    return float(total.detach()), np.maximum(weights, LEAST_WEIGHT * weights.max())
