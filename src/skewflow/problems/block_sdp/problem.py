"""The public entrance to the solver: checks, defaults and the start."""

import math
from typing import Any

import numpy as np

from ..._validate import count
from ...errors import ShapeError
from .._matrices import from_torch, limit, positive, symmetric
from .cost import SparseCost
from .reference import Array, polar
from .solve import BlockSDP, random_point, staircase

_FLOAT64, _FLOAT32 = 1e-8, 1e-4
"""Errors of orthonormal rows up to which they are those of float64, and of float32."""


def solve_block_sdp(
    C: Any,
    p: int = 1,
    *,
    rank: int | None = None,
    initial: Any = None,
    tol: float = 1e-6,
    max_sweeps: int = 5000,
    max_steps: int = 100,
    seed: int = 0,
) -> BlockSDP:
    r"""Minimise $\langle C, Z\rangle$ over $Z \succeq 0$ with $Z_{ii} = I_p$, and prove a bound.

    The method writes $Z = YY^\top$ with n blocks of p orthonormal rows, the Burer-Monteiro
    factorisation, and starts at a small rank. First every block moves in turn along its exact
    minimiser, over-relaxed; then a Riemannian trust region takes Newton steps. Where the dual
    matrix $C - \Lambda$ has a negative eigenvalue at a critical point, the rank grows along its
    eigenvectors. A factorisation of $C - \Lambda + \epsilon I$ with a bound on its own rounding
    errors proves the lower bound. Not in the paper.

    Args:
        C: Symmetric (n p, n p) matrix: scipy.sparse, numpy or torch.
        p: Size of the blocks.
        rank: Columns of the first factor; about 1.5 n^(1/3) for p = 1 by default, else p + 2.
        initial: A start (n, p, r) with orthonormal rows in each block (numpy or torch, also of
            float32), instead of a random one.
        tol: The relative gap between value and bound at which the solver stops.
        max_sweeps: Most passes over all blocks; 0 begins with the trust region.
        max_steps: Most steps of the trust region.
        seed: Seed of the random start.

    Returns:
        The solution with its bound. `certified` is False if the gap stays above `tol`; the bound
        holds nonetheless.

    Raises:
        ShapeError: If a size does not fit.
        NonFiniteError: If C holds NaN or infinity.
        ValueError: If C is not symmetric, or an option is out of its range.

    Example:
        >>> import numpy as np
        >>> from skewflow.problems import solve_block_sdp
        >>> triangle = np.ones((3, 3)) - np.eye(3)
        >>> solution = solve_block_sdp(triangle)
        >>> print(f"{solution.value:.4f}", solution.certified)
        -3.0000 True
    """
    count(p, "p")
    matrix = symmetric(C, "C")
    size = matrix.shape[0]
    if size % p:
        raise ShapeError(
            f"`p` must divide the number of rows of `C`: got p={p} for {size} rows. "
            "Each of the n blocks of Z has p rows."
        )
    n = size // p
    positive(tol, "tol", "1e-6")
    limit(max_sweeps, "max_sweeps")
    limit(max_steps, "max_steps")
    limit(seed, "seed")
    highest = max(p + 1, math.isqrt(n * p * (p + 1)) + 1)
    if initial is None:
        if rank is None:
            rank = min(highest, max(2, math.ceil(1.5 * n ** (1 / 3))) if p == 1 else p + 2)
        count(rank, "rank")
        if rank < p:
            raise ShapeError(
                f"`rank` must be at least p: got rank={rank} and p={p}. "
                "A block of p orthonormal rows has at least p columns."
            )
        Y = random_point(n, p, rank, seed)
    else:
        Y = _checked_point(initial, n, p)
    return staircase(
        SparseCost(matrix, p),
        Y,
        tol=tol,
        max_rank=max(highest, Y.shape[-1]),
        max_steps=max_steps,
        sweeps=max_sweeps,
    )


def _checked_point(initial: Any, n: int, p: int) -> Array:
    Y = np.array(from_torch(initial), dtype=np.float64, order="C")
    if Y.ndim != 3 or Y.shape[:2] != (n, p) or Y.shape[2] < p:
        raise ShapeError(
            f"`initial` must have the shape ({n}, {p}, r) with r >= {p}: got {Y.shape}."
        )
    error = np.abs(Y @ Y.mT - np.eye(p)).max()
    if not error <= _FLOAT32:
        raise ValueError(
            f"`initial` must have orthonormal rows in each block: |Y Yᵀ - I| is {error:.1e}. "
            "Use `skewflow.geometry.project` on its transpose."
        )
    return Y if error <= _FLOAT64 else polar(Y)
