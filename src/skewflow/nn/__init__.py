"""Orthogonal weights in networks."""

from .init import orthogonal_ as orthogonal_

__all__ = ["orthogonal_"]
