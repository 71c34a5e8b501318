"""Type aliases for tensors that come one for each block size of a partition."""

from jaxtyping import Float, Int
from torch import Tensor

RowBlocks = tuple[Int[Tensor, "_ _"], ...]
"""Row indices: one (l, s) tensor for each block size s, with l blocks of that size."""

MatrixBlocks = tuple[Float[Tensor, "_ _ _"], ...]
"""Entries of a matrix inside the blocks: one (l, s, s) tensor for each block size s."""
