"""Weighted tournaments: families of partitions, exact counting, variance (Sec. 3, 9.5-9.7)."""

from .balance import balance as balance
from .balance import balanced_tau_ratio as balanced_tau_ratio
from .balance import certified_norm as certified_norm
from .balance import certified_tau as certified_tau
from .balance import gamma as gamma
from .balance import partition_weight as partition_weight
from .balance import rho as rho
from .balance import tau_star as tau_star
from .convergence import gradient_norm_bound as gradient_norm_bound
from .counting import edge_probability as edge_probability
from .counting import joint_edge_probabilities as joint_edge_probabilities
from .counting import num_partitions as num_partitions
from .counting import num_partitions_with_edge as num_partitions_with_edge
from .covering import covering_estimate as covering_estimate
from .covering import covering_matrix as covering_matrix
from .covering import optimal_probabilities as optimal_probabilities
from .edge_weights import EdgeWeights as EdgeWeights
from .enumeration import enumerate_partitions as enumerate_partitions
from .families import Family as Family
from .families import affine_lines as affine_lines
from .families import non_intersecting as non_intersecting
from .families import round_robin as round_robin
from .inclusion import h_regular_inclusion as h_regular_inclusion
from .inclusion import h_regular_inclusion_dense as h_regular_inclusion_dense
from .matchings import heavy_matchings as heavy_matchings
from .partitions import Partition as Partition
from .partitions import block_sizes as block_sizes
from .tournament import Tournament as Tournament
from .variance import exact_variance as exact_variance
from .variance import family_h_variance as family_h_variance
from .variance import family_optimal_variance as family_optimal_variance
from .variance import family_sums as family_sums
from .variance import h_regular_variance as h_regular_variance
from .variance import horvitz_thompson_variance as horvitz_thompson_variance
from .variance import optimal_variance as optimal_variance
from .variance import partition_norm as partition_norm
from .variance import sweep_variance as sweep_variance
from .variance import uniform_variance as uniform_variance
from .weight_functions import weight_function as weight_function

__all__ = [
    "EdgeWeights",
    "Family",
    "Partition",
    "Tournament",
    "affine_lines",
    "balance",
    "balanced_tau_ratio",
    "block_sizes",
    "certified_norm",
    "certified_tau",
    "covering_estimate",
    "covering_matrix",
    "edge_probability",
    "enumerate_partitions",
    "exact_variance",
    "family_h_variance",
    "family_optimal_variance",
    "family_sums",
    "gamma",
    "gradient_norm_bound",
    "h_regular_inclusion",
    "h_regular_inclusion_dense",
    "h_regular_variance",
    "heavy_matchings",
    "horvitz_thompson_variance",
    "joint_edge_probabilities",
    "non_intersecting",
    "num_partitions",
    "num_partitions_with_edge",
    "optimal_probabilities",
    "optimal_variance",
    "partition_norm",
    "partition_weight",
    "rho",
    "round_robin",
    "sweep_variance",
    "tau_star",
    "uniform_variance",
    "weight_function",
]
