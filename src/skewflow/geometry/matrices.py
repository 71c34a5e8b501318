"""A weight as the matrices of ST(d, k) it stands for: a view, without a copy or a transpose."""

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
    r"""How the weights of one shape are seen as n matrices with d >= k and orthonormal columns.

    A tall matrix is itself, a wide one its transpose (orthonormal rows). A batch (n, d, k) is n
    matrices. A convolution weight (C_out, C_in, *kernel), and that of a transposed convolution
    (C_in, C_out, *kernel), is the matrix $[\prod kernel \cdot C_{in}, C_{out}]$ of the paper
    (Sec. 6.2), or its transpose when C_out is the larger side. Its rows may come in any order,
    which orthonormal columns do not notice, so channels-last storage is taken as it lies. A weight
    of three dimensions is a convolution, and one of more a transposed one, where its module has
    said so (see `record_layouts`).

    Args:
        shape: The weight's shape.
        layout: Whether it is a convolution's; None for a matrix or a batch of them.
        channels_last: The channels of a convolution weight come last in memory.

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
        """The view that needs no copy of this weight, if there is one; errors call it `name`."""
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
        """The matrices are the transposes of what is stored."""
        rows, columns = self._stored[1:]
        return rows < columns

    @cached_property
    def matrices(self) -> tuple[int, int, int]:
        """(n, d, k)."""
        n, rows, columns = self._stored
        return n, max(rows, columns), min(rows, columns)

    def __call__(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "n d k"]:
        """A weight, gradient or buffer as matrices; a view where the memory allows it."""
        stored = tensor if self._order is None else tensor.permute(self._order)
        stored = stored.reshape(self._stored)
        return stored.mT if self.wide else stored

    def matrix(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "d k"]:
        """The same where there is one matrix, which then needs no batch."""
        if len(self.shape) > 2:
            return self(tensor)[0]
        return tensor.mT if self.wide else tensor

    def restore(self, X: Float[Tensor, "n d k"]) -> Float[Tensor, "*shape"]:
        """Matrices back in the weight's own shape."""
        stored = X.mT if self.wide else X
        if self._order is None:
            return stored.reshape(self.shape)
        back = sorted(range(len(self._order)), key=self._order.__getitem__)
        return stored.reshape([self.shape[i] for i in self._order]).permute(back)

    @cached_property
    def _order(self) -> tuple[int, ...] | None:
        """The order of the dimensions that begins with C_out; None where the weight has it."""
        kernel = range(2, len(self.shape))
        if self.layout == "transposed convolution":
            return (1, 0, *kernel)
        return (0, *kernel, 1) if self.channels_last else None

    @cached_property
    def _stored(self) -> tuple[int, int, int]:
        if self.layout is None:
            *batch, rows, columns = self.shape
            return math.prod(batch), rows, columns
        out = self.shape[1 if self.layout == "transposed convolution" else 0]
        return 1, out, math.prod(self.shape) // out


def as_matrices(weight: Float[Tensor, "*shape"]) -> Float[Tensor, "n d k"]:
    """The weight as n matrices with orthonormal columns, by `MatrixView`.

    Example:
        >>> import torch
        >>> as_matrices(torch.zeros(5, 8)).shape
        torch.Size([1, 8, 5])
    """
    return MatrixView.of(weight)(weight)
