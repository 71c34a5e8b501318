"""Random orders of the rows without memory: keyed permutations, point by point."""

from .reference import matching_at as matching_at
from .reference import order_at as order_at

__all__ = ["matching_at", "order_at"]
