"""pymanopt's trust region on the same relaxation, at the rank that guarantees the optimum."""

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class _LateError(Exception):
    """Raised to stop the solver when its time is over."""


def has_pymanopt() -> bool:
    """Whether pymanopt is installed."""
    return find_spec("pymanopt") is not None


def trust_region(C: Any, Y: Array, limit: float) -> list[tuple[float, float]]:
    """Seconds and value of <C, Y Yᵀ> at each of its evaluations, until it stops by itself.

    Args:
        C: The cost, in compressed rows.
        Y: The start (n, r).
        limit: Most seconds of processor time.
    """
    import pymanopt

    manifold = pymanopt.manifolds.Oblique(Y.shape[1], Y.shape[0])
    seen: list[tuple[float, float]] = []
    began = time.process_time()

    def function(f: Callable[..., Any]) -> Any:
        return pymanopt.function.numpy(manifold)(f)

    def apply(X: Array) -> Array:
        return (C @ X.T).T

    def cost(X: Array) -> float:
        seen.append((time.process_time() - began, float(np.vdot(X, apply(X)))))
        if seen[-1][0] > limit:
            raise _LateError
        return seen[-1][1]

    problem = pymanopt.Problem(
        manifold,
        function(cost),
        euclidean_gradient=function(lambda X: 2 * apply(X)),
        euclidean_hessian=function(lambda X, V: 2 * apply(V)),
    )
    optimizer = pymanopt.optimizers.TrustRegions(verbosity=0, max_time=float("inf"))
    try:
        optimizer.run(problem, initial_point=np.ascontiguousarray(Y.T))
        seen.append((time.process_time() - began, min(value for _, value in seen)))
    except _LateError:
        pass
    return seen
