"""Checks of the arguments of public functions; they run before anything is computed or changed."""

import operator

import torch
from torch import Tensor

from .errors import BlockSizeError, DtypeError, NonFiniteError, ShapeError

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The real floating dtypes that skewflow supports."""


def floating(A: Tensor, name: str) -> None:
    """Check that `A` is a real floating-point tensor."""
    if not isinstance(A, Tensor):
        raise DtypeError(
            f"`{name}` must be a torch.Tensor: got {type(A).__name__}. Call torch.as_tensor first."
        )
    if A.dtype not in FLOATS:
        raise DtypeError(
            f"`{name}` must be a real floating-point tensor: got {A.dtype}. "
            f"Convert it first, e.g. `{name}.to(torch.float32)`."
        )


def matrix(A: Tensor, name: str) -> None:
    """Check that `A` is a finite real matrix or a batch of them, with no empty dimension."""
    floating(A, name)
    if A.ndim < 2:
        raise ShapeError(
            f"`{name}` must be a matrix (*batch, d, k): got shape {tuple(A.shape)}. "
            "Add the missing dimensions with reshape or unsqueeze."
        )
    if A.numel() == 0:
        raise ShapeError(
            f"`{name}` must not be empty: got shape {tuple(A.shape)}. "
            "Drop the empty batch or matrix before the call."
        )
    # Both are NaN if any entry is NaN. On a CPU this takes a tenth of the time of isfinite.
    if not torch.isfinite(torch.stack(torch.aminmax(A.detach()))).all():
        bad = int((~torch.isfinite(A)).sum())
        raise NonFiniteError(
            f"`{name}` must be finite: {bad} of its {A.numel()} entries are NaN or infinite. "
            "Check for an overflow or too large a step where it was computed."
        )


def tall(X: Tensor, name: str = "X") -> None:
    """Check that `X` has at least as many rows as columns, like the points of ST(d, k)."""
    matrix(X, name)
    d, k = X.shape[-2:]
    if k > d:
        raise ShapeError(
            f"`{name}` must have d >= k (orthonormal columns): got d={d}, k={k}. "
            f"For orthonormal rows pass `{name}.mT`."
        )


def square(A: Tensor, name: str) -> None:
    """Check that `A` is a square matrix or a batch of them."""
    matrix(A, name)
    if A.shape[-1] != A.shape[-2]:
        raise ShapeError(
            f"`{name}` must be square: got shape {tuple(A.shape)}. "
            "Generators are (d, d); points (d, k) are passed as X."
        )


def like(B: Tensor, A: Tensor, name: str, other: str) -> None:
    """Check that `B` is a matrix with the shape, dtype and device of `A`."""
    matrix(B, name)
    if B.shape != A.shape:
        raise ShapeError(
            f"`{name}` must have the shape of `{other}`: got {tuple(B.shape)} and "
            f"{tuple(A.shape)}. Transpose, or expand the batch, so that they agree."
        )
    same_kind(B, A, name, other)


def same_kind(B: Tensor, A: Tensor, name: str, other: str) -> None:
    """Check that `B` has the dtype and device of `A`."""
    if B.dtype != A.dtype or B.device != A.device:
        raise DtypeError(
            f"`{name}` must have the dtype and device of `{other}`: got {B.dtype} on {B.device} "
            f"and {A.dtype} on {A.device}. Move one with `.to(...)`."
        )


def one_of(value: object, allowed: tuple[str, ...], name: str) -> None:
    """Check that `value` is one of the allowed words."""
    if value not in allowed:
        words = ", ".join(repr(word) for word in allowed)
        raise ValueError(f"`{name}` must be one of {words}: got {value!r}.")


def generator(g: torch.Generator, name: str = "generator") -> None:
    """Check that `g` is a torch.Generator."""
    if not isinstance(g, torch.Generator):
        raise TypeError(
            f"`{name}` must be a torch.Generator: got {type(g).__name__}. "
            "Make one with `torch.Generator().manual_seed(0)`."
        )


def whole(value: object, name: str) -> int:
    """`value` as an int, from any integer type except bool."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise BlockSizeError(f"{name} must be an integer: got {value!r}. Use e.g. 2.") from None


def count(value: object, name: str) -> None:
    """Check that `value` is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"`{name}` must be a whole number of at least 1: got {value!r}.")


def block_size(size: object, d: int) -> int:
    """Check that a block has between two and `d` rows; the size as an int."""
    s = whole(size, "`block_size`")
    if d < 2:
        raise BlockSizeError(
            f"a tournament needs at least d=2 rows: got d={d}. "
            "O(1) is the two points +1 and -1, so there is nothing to rotate."
        )
    if not 2 <= s <= d:
        raise BlockSizeError(
            f"`block_size` must lie between 2 (matchings) and the number of rows d={d} (exact): "
            f"got block_size={s}."
        )
    return s


def pairs(edges: Tensor, d: int) -> None:
    """Check that `edges` is an (m, 2) integer tensor of rows of a matrix with `d` rows."""
    if not isinstance(edges, Tensor) or edges.dtype not in (torch.int64, torch.int32):
        kind = edges.dtype if isinstance(edges, Tensor) else type(edges).__name__
        raise DtypeError(
            f"`pairs` must be an integer tensor of row numbers: got {kind}. "
            "Make it with `torch.tensor([[i, j], ...])`."
        )
    if edges.ndim != 2 or edges.shape[-1] != 2:
        raise ShapeError(f"`pairs` must have the shape (m, 2): got {tuple(edges.shape)}.")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < d:
        raise ShapeError(
            f"`pairs` must name rows in 0..{d - 1}: got numbers from {int(edges.min())} to "
            f"{int(edges.max())}."
        )
