"""Checks of symmetric matrices and weighted graphs at the public edge."""

from typing import Any

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]

from ..errors import NonFiniteError, ShapeError

_ASYMMETRY = 1e-12
"""Largest relative difference of mirrored entries that is taken for rounding."""


def symmetric(A: Any, name: str) -> Any:
    """`A` as a symmetric float64 matrix in compressed rows."""
    if hasattr(A, "detach"):
        A = A.detach().cpu().numpy()
    if not sp.issparse(A):
        A = np.asarray(A)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or A.shape[0] == 0:
        raise ShapeError(f"`{name}` must be a square matrix: got shape {tuple(A.shape)}.")
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
