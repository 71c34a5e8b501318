"""A weight as the matrices of ST(d, k) it stands for: a view, without a copy or a transpose."""

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from ..errors import ShapeError


@dataclass(frozen=True)
class MatrixView:
    r"""How the weights of one shape are seen as n matrices with d >= k and orthonormal columns.

    A tall matrix is itself, a wide one its transpose (orthonormal rows). A batch (n, d, k) is n
    matrices. A convolution weight (C_out, C_in, *kernel) of four or more dimensions is the matrix
    $[\prod kernel \cdot C_{in}, C_{out}]$ of the paper (Sec. 6.2), or its transpose when C_out is
    the larger side. Its rows may come in any order, which orthonormal columns do not notice, so
    channels-last storage is taken as it lies. A one-dimensional convolution (C_out, C_in, width)
    looks like a batch: use its ``flatten(1)``.

    Args:
        shape: The weight's shape.
        channels_last: The channels of a convolution weight come last in memory.

    Example:
        >>> import torch
        >>> MatrixView.of(torch.zeros(16, 3, 3, 3)).matrices
        (1, 27, 16)
    """

    shape: tuple[int, ...]
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
        channels_last = weight.ndim > 3 and not weight[0].is_contiguous()
        return cls(tuple(weight.shape), channels_last)

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
        stored = tensor.movedim(1, -1) if self.channels_last else tensor
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
        if not self.channels_last:
            return stored.reshape(self.shape)
        out, channels, *kernel = self.shape
        return stored.reshape(out, *kernel, channels).movedim(-1, 1)

    @cached_property
    def _stored(self) -> tuple[int, int, int]:
        if len(self.shape) == 3:
            return self.shape[0], self.shape[1], self.shape[2]
        columns = 1
        for size in self.shape[1:]:
            columns *= size
        return 1, self.shape[0], columns


def as_matrices(weight: Float[Tensor, "*shape"]) -> Float[Tensor, "n d k"]:
    """The weight as n matrices with orthonormal columns, by `MatrixView`.

    Example:
        >>> import torch
        >>> as_matrices(torch.zeros(5, 8)).shape
        torch.Size([1, 8, 5])
    """
    return MatrixView.of(weight)(weight)
