"""Rivals without a package, written from their papers, in the form of torch's optimisers.

All take tall matrices (*batch, d, k), one batch in one step, and wait for no device.
"""

from .cayley_sgd import CayleySGD
from .landing import Landing
from .rsdm import RSDM

__all__ = ["RSDM", "CayleySGD", "Landing"]
