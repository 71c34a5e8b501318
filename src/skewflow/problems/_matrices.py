"""Checks of symmetric matrices and weighted graphs at the public edge."""

import math
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]

from ..errors import NonFiniteError, ShapeError

_ASYMMETRY = 1e-12
"""Largest relative difference of mirrored entries that is taken for rounding."""


_LARGEST = 1e100
"""The square of a larger number may overflow, and that of its inverse vanish."""


def from_torch(A: Any) -> Any:
    """A tensor of any layout and dtype as an array; all else as it is."""
    if not hasattr(A, "detach"):
        return A
    A = A.detach().cpu().to_dense()
    return A.numpy() if A.dtype.itemsize > 2 or not A.is_floating_point() else A.double().numpy()


def scale(largest: float, name: str) -> None:
    """Check that the largest number of a problem is neither huge nor tiny; zero is neither."""
    if largest and not 1 / _LARGEST <= largest <= _LARGEST:
        raise ValueError(
            f"`{name}` must have a largest number between {1 / _LARGEST:g} and {_LARGEST:g}: got "
            f"{largest:g}. Multiply all of it by a power of ten: the solution is the same."
        )


def positive(value: Any, name: str, example: str) -> None:
    """Check that a value, such as a tolerance, is a positive finite number."""
    if not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ValueError(f"`{name}` must be a positive number: got {value!r}. Use e.g. {example}.")


def limit(value: Any, name: str, least: int = 0) -> None:
    """Check that a number, such as one of steps, is whole and at least `least`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}: got {value!r}.")


def symmetric(A: Any, name: str) -> Any:
    """`A` as a symmetric float64 matrix in compressed rows."""
    A = from_torch(A)
    if not sp.issparse(A):
        A = np.asarray(A)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or A.shape[0] == 0:
        raise ShapeError(f"`{name}` must be a square matrix: got shape {tuple(A.shape)}.")
    if A.dtype.kind == "c":
        raise ValueError(f"`{name}` must be real: got {A.dtype}. Pass its real part.")
    matrix = sp.csr_matrix(A, dtype=np.float64)
    matrix.sum_duplicates()
    if not np.isfinite(matrix.data).all():
        bad = int((~np.isfinite(matrix.data)).sum())
        raise NonFiniteError(
            f"`{name}` must be finite: {bad} of its entries are NaN or infinite. "
            "Remove these entries, or correct the weights they come from."
        )
    difference = abs(matrix - matrix.T)
    largest = abs(matrix).max() if matrix.nnz else 0.0
    scale(largest, name)
    if difference.nnz and difference.max() > _ASYMMETRY * largest:
        i, j = (int(k[difference.data.argmax()]) for k in difference.tocoo().coords)
        raise ValueError(
            f"`{name}` must be symmetric: its entries ({i}, {j}) and ({j}, {i}) are "
            f"{matrix[i, j]:g} and {matrix[j, i]:g}. Use ({name} + {name}.T) / 2 if the mean is "
            "what you want."
        )
    matrix = ((matrix + matrix.T) / 2).tocsr()
    matrix.sort_indices()
    return matrix
