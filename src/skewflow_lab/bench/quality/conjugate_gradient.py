"""Conjugate gradients by pymanopt: a solver with a line search, for exact gradients on a CPU."""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .problem import Problem


def excuse(problem: Problem) -> str | None:
    """The reason why pymanopt cannot solve the problem, or None."""
    if problem.device.type != "cpu" or not problem.deterministic:
        return "computes in numpy with a line search: on a CPU, and with exact gradients only"
    return None


def solve(problem: Problem, seconds: float) -> tuple[float, int, Tensor]:
    """Run pymanopt's conjugate gradients from the start for some seconds.

    It works in float64 with our gradients in float32.

    Returns:
        The seconds it took, its iterations, and its point.
    """
    import pymanopt
    from pymanopt.manifolds import Stiefel
    from pymanopt.optimizers import ConjugateGradient

    *batch, d, k = problem.shape
    manifold = Stiefel(d, k, k=torch.Size(batch).numel())

    @pymanopt.function.numpy(manifold)  # type: ignore[untyped-decorator]
    def cost(X: Any) -> float:
        return problem.unit * problem.loss(torch.from_numpy(X))

    @pymanopt.function.numpy(manifold)  # type: ignore[untyped-decorator]
    def gradient(X: Any) -> Any:
        return problem.gradient(torch.from_numpy(X).float(), 0).double().numpy()

    # Only the clock stops it, or a line search that finds no step.
    most = 10**9
    optimizer = ConjugateGradient(
        max_time=seconds,
        max_iterations=most,
        max_cost_evaluations=most,
        min_gradient_norm=0.0,
        min_step_size=float(np.finfo(float).tiny),
        verbosity=0,
    )
    start = problem.start().double().numpy()
    began = time.perf_counter()
    done = optimizer.run(
        pymanopt.Problem(manifold, cost, euclidean_gradient=gradient), initial_point=start
    )
    return time.perf_counter() - began, done.iterations, torch.from_numpy(done.point)
