"""Products for some matrices of a batch; the device decides for which."""

from .dispatch import choose_buffer as choose_buffer
from .dispatch import has_kernel as has_kernel
from .dispatch import multiply_where_ as multiply_where_
from .dispatch import num_rounds as num_rounds

__all__ = ["choose_buffer", "has_kernel", "multiply_where_", "num_rounds"]
