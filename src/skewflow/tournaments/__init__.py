"""Weighted tournaments: lazy edge weights, partitions into blocks, families of them (Sec. 3, 4)."""

from . import theory as theory
from .edge_weights import EdgeWeights as EdgeWeights
from .families import Family as Family
from .families import non_intersecting as non_intersecting
from .families import round_robin as round_robin
from .matchings import heavy_matchings as heavy_matchings
from .partition_weights import family_sums as family_sums
from .partition_weights import partition_norm as partition_norm
from .partition_weights import partition_weight as partition_weight
from .partitions import Partition as Partition
from .partitions import block_sizes as block_sizes
from .partitions import edge_probability as edge_probability
from .tournament import Tournament as Tournament
from .weight_functions import weight_function as weight_function

__all__ = [
    "EdgeWeights",
    "Family",
    "Partition",
    "Tournament",
    "block_sizes",
    "edge_probability",
    "family_sums",
    "heavy_matchings",
    "non_intersecting",
    "partition_norm",
    "partition_weight",
    "round_robin",
    "theory",
    "weight_function",
]
