"""Rotate each block of rows by its own s x s rotation (Eq. 8)."""

from .reference import rotate_blocks as rotate_blocks

__all__ = ["rotate_blocks"]
