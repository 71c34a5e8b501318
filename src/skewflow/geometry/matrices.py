"""Views of a weight as matrices of ST(d, k)."""

import math
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import ShapeError
from .layouts import LAYOUTS, Layout, layout_of


@dataclass(frozen=True)
class MatrixView:
    r"""How a weight of one shape is viewed as n matrices (d, k), d >= k, with orthonormal columns.

    A tall matrix is viewed as itself and a wide one as its transpose (orthonormal rows). A batch
    (n, d, k) is n matrices. The weight of a convolution (C_out, C_in, *kernel) or of a transposed
    convolution (C_in, C_out, *kernel) is the matrix $[\prod kernel \cdot C_{in}, C_{out}]$ of the
    paper (Sec. 6.2), or its transpose when C_out is the larger side. The order of its rows does not
    affect orthonormality, so channels-last storage needs no reordering. A weight of three
    dimensions is a convolution, and one of four or more a transposed convolution, only if its
    module recorded that layout (see `record_layouts`).

    Args:
        shape: The weight's shape.
        layout: Layout of a convolution weight; None for a matrix or a batch of matrices.
        channels_last: Whether the channels of a convolution weight come last in memory.

    Example:
        >>> import torch
        >>> MatrixView.of(torch.zeros(16, 3, 3, 3)).matrices
        (1, 27, 16)
    """

    shape: tuple[int, ...]
    layout: Layout | None
    channels_last: bool = False

    @classmethod
    def of(cls, weight: Tensor, name: str = "an orthogonal weight") -> "MatrixView":
        """The view for this weight, without a copy if its strides allow; errors name it `name`."""
        if weight.ndim < 2:
            raise ShapeError(
                f"{name} must have at least two dimensions to be orthogonal: got shape "
                f"{tuple(weight.shape)}. Give biases and scales to another optimiser."
            )
        if weight.numel() == 0:
            raise ShapeError(f"{name} must not be empty: got shape {tuple(weight.shape)}.")
        layout = layout_of(weight)
        if layout is not None:
            _validate.one_of(layout, LAYOUTS, f"orthogonal_layout` of `{name}")
        channels_last = layout == "convolution" and not weight[0].is_contiguous()
        return cls(tuple(weight.shape), layout, channels_last)

    @cached_property
    def wide(self) -> bool:
        """Whether the stored matrices are wide, so that the view transposes them."""
        rows, columns = self._stored[1:]
        return rows < columns

    @cached_property
    def matrices(self) -> tuple[int, int, int]:
        """The number of matrices, their rows and their columns: (n, d, k)."""
        n, rows, columns = self._stored
        return n, max(rows, columns), min(rows, columns)

    def __call__(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "n d k"]:
        """A weight, gradient or buffer as matrices, without a copy where its strides allow."""
        stored = tensor if self._order is None else tensor.permute(self._order)
        stored = stored.reshape(self._stored)
        return stored.mT if self.wide else stored

    def matrix(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "d k"]:
        """The only matrix of a weight that is a single one, without a batch dimension."""
        if len(self.shape) > 2:
            return self(tensor)[0]
        return tensor.mT if self.wide else tensor

    def restore(self, X: Float[Tensor, "n d k"]) -> Float[Tensor, "*shape"]:
        """Matrices in the shape of the weight: the inverse of the view."""
        stored = X.mT if self.wide else X
        if self._order is None:
            return stored.reshape(self.shape)
        back = sorted(range(len(self._order)), key=self._order.__getitem__)
        return stored.reshape([self.shape[i] for i in self._order]).permute(back)

    @cached_property
    def _order(self) -> tuple[int, ...] | None:
        """The order of the dimensions that puts C_out first; None if the weight has it already."""
        kernel = range(2, len(self.shape))
        if self.layout == "transposed convolution":
            return (1, 0, *kernel)
        return (0, *kernel, 1) if self.channels_last else None

    @cached_property
    def _stored(self) -> tuple[int, int, int]:
        """The number of stored matrices, their rows and their columns."""
        if self.layout is None:
            *batch, rows, columns = self.shape
            return math.prod(batch), rows, columns
        place = 1 if self.layout == "transposed convolution" else 0
        others = (*self.shape[:place], *self.shape[place + 1 :])
        return 1, self.shape[place], math.prod(others)


def as_matrices(weight: Float[Tensor, "*shape"]) -> Float[Tensor, "n d k"]:
    """The weight as n matrices with orthonormal columns, by `MatrixView`.

    Example:
        >>> import torch
        >>> as_matrices(torch.zeros(5, 8)).shape
        torch.Size([1, 8, 5])
    """
    return MatrixView.of(weight)(weight)
