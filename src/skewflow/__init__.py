"""Optimisation on O(d), SO(d) and the Stiefel manifold with one dial, the block size."""

from . import errors as errors
from . import geometry as geometry

__all__ = ["errors", "geometry"]
__version__ = "0.1.0.dev0"
