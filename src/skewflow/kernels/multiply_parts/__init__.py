"""Products of float32 matrices whose factors are split into two float16 parts."""

from .dispatch import SHARED as SHARED
from .dispatch import is_faster as is_faster

__all__ = ["SHARED", "is_faster"]
