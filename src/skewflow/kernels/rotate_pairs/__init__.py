"""Rotate disjoint pairs of rows, a product of commuting Givens rotations (Sec. 4)."""

from .reference import rotate_pairs as rotate_pairs

__all__ = ["rotate_pairs"]
