"""A graph of relative measurements between poses."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]
from numpy.typing import NDArray

from ...errors import NonFiniteError, ShapeError
from .._matrices import from_torch, scale
from ..block_sdp.reference import Array


@dataclass(frozen=True)
class PoseGraph:
    """Measurements x_i⁻¹ x_j of poses x = (R, t) in SE(2) or SE(3), or of rotations only.

    The problem is in Sec. 1, the data structure is not in the paper.
    """

    edges: NDArray[np.int64]
    """The poses i and j of each measurement, (m, 2), numbered from 0."""
    rotations: Array
    """Measured R_iᵀ R_j, (m, d, d)."""
    translations: Array | None
    """Measured R_iᵀ (t_j - t_i), (m, d); None if only rotations are measured."""
    rotation_weights: Array
    """The precision kappa of each rotation, (m)."""
    translation_weights: Array | None
    """The precision tau of each translation, (m)."""
    labels: NDArray[np.int64] | None = None
    """The number of each pose in the file it was read from."""

    @property
    def n(self) -> int:
        """How many poses there are."""
        return int(self.edges.max()) + 1

    @property
    def d(self) -> int:
        """The dimension, 2 or 3."""
        return int(self.rotations.shape[-1])

    def __post_init__(self) -> None:
        self._take_arrays()
        m, d = len(self.edges), self.rotations.shape[-1]
        if m == 0:
            raise ShapeError("a pose graph must hold at least one measurement between two poses.")
        if self.edges.shape != (m, 2) or self.edges.min() < 0:
            raise ShapeError(
                f"`edges` must hold rows (i, j) from 0 on: got shape {self.edges.shape}."
            )
        if d == 0 or (self.translations is None) != (self.translation_weights is None):
            raise ShapeError(
                "measured poses need rotations of at least one row, and `translations` with "
                "`translation_weights`, or neither of them."
            )
        arrays: dict[str, tuple[Array, tuple[int, ...]]] = {
            "rotations": (self.rotations, (m, d, d))
        }
        arrays["rotation_weights"] = (self.rotation_weights, (m,))
        if self.translations is not None and self.translation_weights is not None:
            arrays["translations"] = (self.translations, (m, d))
            arrays["translation_weights"] = (self.translation_weights, (m,))
        for name, (array, shape) in arrays.items():
            if array.shape != shape:
                raise ShapeError(f"`{name}` must have shape {shape}: got {array.shape}.")
            if not np.isfinite(array).all():
                raise NonFiniteError(
                    f"`{name}` must be finite: {int((~np.isfinite(array)).sum())} entries are NaN "
                    "or infinite. Remove these measurements."
                )
            if name.endswith("weights") and not (array > 0).all():
                raise ValueError(f"`{name}` must be positive: the smallest is {array.min():g}.")
            scale(np.abs(array).max(), name)
        loops = np.flatnonzero(self.edges[:, 0] == self.edges[:, 1])
        if len(loops):
            raise ValueError(f"measurement {loops[0]} must join two poses: both are the same.")
        error = np.abs(self.rotations @ self.rotations.mT - np.eye(d)).max()
        if error > 1e-6:
            raise ValueError(
                f"`rotations` must be rotation matrices: |R Rᵀ - I| is up to {error:.1e}. "
                "Use `skewflow.geometry.project` first."
            )
        mirrored = int((np.linalg.det(self.rotations) < 0).sum())
        if mirrored:
            raise ValueError(
                f"`rotations` must have determinant 1: {mirrored} of them have -1. "
                "A mirror image is no rotation: correct these measurements."
            )
        i, j = self.edges.T
        adjacency = sp.coo_array((np.ones(m), (i, j)), shape=(self.n, self.n))
        parts, _ = sp.csgraph.connected_components(adjacency, directed=False)
        if parts > 1:
            raise ValueError(
                f"the pose graph must be connected: it has {parts} parts. Nothing is known of the "
                "poses of one relative to another: solve each part by itself."
            )

    def _take_arrays(self) -> None:
        """Lists and tensors become arrays; the numbers of poses must be whole."""
        edges = np.asarray(from_torch(self.edges))
        if edges.size and not (edges.dtype.kind in "iuf" and (edges == np.floor(edges)).all()):
            raise ValueError("`edges` must hold the numbers of poses, whole numbers from 0 on.")
        taken: dict[str, NDArray[Any]] = {"edges": np.atleast_1d(edges).astype(np.int64)}
        for name in ("rotations", "translations", "rotation_weights", "translation_weights"):
            array = from_torch(getattr(self, name))
            if array is not None:
                taken[name] = np.atleast_1d(np.asarray(array, dtype=np.float64))
        for name, array in taken.items():
            object.__setattr__(self, name, array)
