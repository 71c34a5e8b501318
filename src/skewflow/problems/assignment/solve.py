"""Quadratic assignment: a flow on O(n), rounding, and exchanges."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import NonFiniteError, ShapeError
from .._matrices import from_torch, limit, scale
from . import cpu
from .relaxation import orthostochastic_flow

DEFAULTS: dict[str, Any] = {
    "maximize": False,
    "partial_match": None,
    "rng": 0,
    "restarts": 16,
    "steps": 150,
    "moves": 10_000,
}
"""Options and their values."""

Array = NDArray[np.float64]
Permutation = NDArray[np.int64]


def quadratic_assignment(
    A: Any, B: Any, method: str = "flow", options: Mapping[str, Any] | None = None
) -> Any:
    r"""A permutation p with a small $\sum_{ij} A_{ij} B_{p_i p_j}$, as in scipy.

    The arguments and the result are those of `scipy.optimize.quadratic_assignment`, whose methods
    "faq" and "2opt" this one competes with. Several points of O(n) flow at once to squares that are
    near a permutation; `scipy.optimize.linear_sum_assignment` rounds each of them, and a tabu
    search over exchanges of two improves it. The result is a local optimum, without a bound. The
    paper names assignment (Sec. 1); the method is not in the paper.

    Args:
        A: Square matrix, not necessarily symmetric (numpy or torch).
        B: Square matrix of the same size.
        method: "flow", in any case.
        options: `maximize` (False); `partial_match`, pairs (i, p_i) that are fixed, of shape (m, 2)
            (None); `rng`, a seed or a numpy generator (0); `restarts`, points in the batch (16);
            `steps` of the flow (150); `moves`, exchanges of the search after each descent (10,000;
            0 stops at the first 2-exchange optimum). Others, such as `P0` of "faq", raise the
            `OptimizeWarning` of scipy and change nothing.

    Returns:
        A `scipy.optimize.OptimizeResult`: `col_ind` is p, `fun` the cost of p computed from its
        definition, and `nit` the number of flow steps.

    Raises:
        ShapeError: If a matrix is not square, the sizes differ, or `partial_match` is no list of
            pairs.
        NonFiniteError: If an entry is NaN or infinite.
        ValueError: If an option has a wrong value.

    Example:
        >>> import numpy as np
        >>> A = np.array([[0, 5, 2], [5, 0, 3], [2, 3, 0]])
        >>> B = np.array([[0, 1, 8], [1, 0, 4], [8, 4, 0]])
        >>> float(quadratic_assignment(A, B).fun)
        66.0
    """
    from scipy.optimize import OptimizeResult, linear_sum_assignment  # type: ignore[import-untyped]

    if not isinstance(method, str) or method.lower() != "flow":
        raise ValueError(
            f'`method` must be "flow": got {method!r}. '
            "scipy.optimize.quadratic_assignment has the others."
        )
    a, b = _square(A, "A"), _square(B, "B")
    if len(a) != len(b):
        raise ShapeError(
            f"`A` and `B` must have the same size: got {len(a)} and {len(b)} rows. "
            "Pad the smaller one with zeros if some vertices have no partner."
        )
    chosen = _options(options or {})
    fixed = _partial_match(chosen["partial_match"], len(a))
    n = len(a)
    perm = np.full(n, -1, dtype=np.int64)
    perm[fixed[:, 0]] = fixed[:, 1]
    rows = np.setdiff1d(np.arange(n), fixed[:, 0])
    columns = np.setdiff1d(np.arange(n), fixed[:, 1])
    rng = np.random.default_rng(chosen["rng"])
    steps = 0
    if len(rows):
        sign = -1.0 if chosen["maximize"] else 1.0
        F, H, L = _free_part(sign * a, b, fixed, rows, columns)
        seed = int(rng.integers(2**31))
        if len(rows) > 1:
            steps = chosen["steps"]
            relaxed = orthostochastic_flow(
                *(torch.from_numpy(M) for M in (F, H, L)),
                restarts=chosen["restarts"],
                steps=steps,
                seed=seed,
            ).numpy()
        else:
            relaxed = np.ones((1, 1, 1))
        starts = [linear_sum_assignment(P, maximize=True)[1] for P in relaxed]
        perm[rows] = columns[improve(F, H, L, starts, chosen["moves"], seed)]
    return OptimizeResult(col_ind=perm, fun=float(assignment_cost(a, b, perm)), nit=steps)


def improve(A: Array, B: Array, L: Array, starts: Any, moves: int, seed: int) -> Permutation:
    """The best permutation that exchanges find from any of the starts."""
    tolerance = 1e-12 * (np.linalg.norm(A) * np.linalg.norm(B) + np.linalg.norm(L))
    best, chosen = np.inf, np.arange(len(A))
    for number, start in enumerate(starts):
        perm = np.array(start, dtype=np.int64)
        cpu.exchange(A, B, L, perm, moves, tolerance, seed + number)
        value = assignment_cost(A, B, perm) + L[np.arange(len(L)), perm].sum()
        if value < best:
            best, chosen = value, perm
    return chosen


def assignment_cost(A: Array, B: Array, perm: Permutation) -> float:
    r"""$\sum_{ij} A_{ij} B_{p_i p_j}$, by its definition."""
    return float((A * B[np.ix_(perm, perm)]).sum())


def _free_part(
    A: Array, B: Array, fixed: Permutation, rows: Permutation, columns: Permutation
) -> tuple[Array, Array, Array]:
    """The problem that the fixed pairs leave: its matrices, and a linear term."""
    i, p = fixed.T
    L = A[np.ix_(rows, i)] @ B[np.ix_(columns, p)].T + A[np.ix_(i, rows)].T @ B[np.ix_(p, columns)]
    return (
        np.ascontiguousarray(A[np.ix_(rows, rows)]),
        np.ascontiguousarray(B[np.ix_(columns, columns)]),
        np.ascontiguousarray(L),
    )


def _square(A: Any, name: str) -> Array:
    A = from_torch(A)
    if hasattr(A, "toarray"):
        A = A.toarray()
    matrix = np.asarray(A)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ShapeError(f"`{name}` must be a square matrix: got shape {matrix.shape}.")
    if np.iscomplexobj(matrix):
        raise ValueError(f"`{name}` must be real: got {matrix.dtype}. Pass its real part.")
    matrix = matrix.astype(np.float64)
    if not np.isfinite(matrix).all():
        bad = int((~np.isfinite(matrix)).sum())
        raise NonFiniteError(
            f"`{name}` must be finite: {bad} of its entries are NaN or infinite. "
            "Use a large number for a pair that must not be chosen."
        )
    scale(np.abs(matrix).max(), name)
    return matrix


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    from scipy.optimize import OptimizeWarning

    unknown = ", ".join(str(name) for name in options if name not in DEFAULTS)
    if unknown:
        warnings.warn(f"Unknown solver options: {unknown}", OptimizeWarning, stacklevel=3)
    chosen = {name: options.get(name, value) for name, value in DEFAULTS.items()}
    for name, least in (("restarts", 1), ("steps", 1), ("moves", 0)):
        limit(chosen[name], name, least)
    return chosen


def _partial_match(pairs: Any, n: int) -> Permutation:
    if pairs is None:
        return np.empty((0, 2), dtype=np.int64)
    match = np.atleast_2d(np.asarray(from_torch(pairs)))
    if match.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    whole = match.dtype.kind in "iuf" and (match == np.floor(match)).all()
    if match.ndim != 2 or match.shape[1] != 2 or not whole:
        raise ShapeError(
            "`partial_match` must hold pairs of whole numbers, shape (m, 2): got an array of "
            f"{match.dtype} and shape {match.shape}."
        )
    if match.min() < 0 or match.max() >= n:
        raise ValueError(
            f"`partial_match` must name rows in 0..{n - 1}: got numbers from {match.min()} to "
            f"{match.max()}."
        )
    for column, name in enumerate(("A", "B")):
        if len(set(match[:, column])) < len(match):
            raise ValueError(
                f"`partial_match` must match a row once: one of `{name}` occurs twice. Remove one "
                "of its pairs."
            )
    return match.astype(np.int64)
