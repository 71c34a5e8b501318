"""Rounds of Givens rotations of the entries of vectors, with a backward pass that inverts them."""

from .dispatch import rotate_rounds as rotate_rounds

__all__ = ["rotate_rounds"]
