"""Operations on rows: each has a readable reference and, beside it, fused forms."""

from .recurrence import recurrence as recurrence
from .rotate_blocks import rotate_blocks as rotate_blocks
from .rotate_pairs import rotate_pairs as rotate_pairs

__all__ = ["recurrence", "rotate_blocks", "rotate_pairs"]
