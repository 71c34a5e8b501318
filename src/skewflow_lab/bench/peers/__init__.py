"""Rivals without a package, written from their papers, in the form of torch's optimisers.

All take tall matrices (*batch, d, k), one batch in one step, and wait for no device.
"""

from .cayley_sgd import CayleySGD
from .intrinsic_muon import IntrinsicMuon
from .landing import Landing
from .manifold_muon import ManifoldMuon
from .rsdm import RSDM
from .spel import SPEL

__all__ = ["RSDM", "SPEL", "CayleySGD", "IntrinsicMuon", "Landing", "ManifoldMuon"]
