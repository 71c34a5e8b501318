"""Shapes that have no letters of their own: one tensor for each block size of a partition."""

from jaxtyping import Float, Int
from torch import Tensor

RowBlocks = tuple[Int[Tensor, "_ _"], ...]
"""Row indices: one (l, s) tensor for each block size s, with l blocks of that size."""

MatrixBlocks = tuple[Float[Tensor, "_ _ _"], ...]
"""A matrix inside each block: one (l, s, s) tensor for each block size s."""
