"""Distributions over subtournaments, with weights that make the estimate unbiased (Sec. 3.2)."""

from .balanced import Balanced as Balanced
from .base import Sampler as Sampler
from .h_regular import HRegular as HRegular
from .heavy_matchings import HeavyMatchings as HeavyMatchings
from .importance import Importance as Importance
from .optimal import Optimal as Optimal
from .round_robin import RelabelledRoundRobin as RelabelledRoundRobin
from .round_robin import RoundRobin as RoundRobin
from .sparsified import Sparsified as Sparsified
from .uniform import Uniform as Uniform

__all__ = [
    "Balanced",
    "HRegular",
    "HeavyMatchings",
    "Importance",
    "Optimal",
    "RelabelledRoundRobin",
    "RoundRobin",
    "Sampler",
    "Sparsified",
    "Uniform",
]
