"""Exact counts, laws, bounds and variances, for proofs and tests at small d (Sec. 3, 9.5-9.8)."""

from .bounds import balance as balance
from .bounds import balanced_tau_ratio as balanced_tau_ratio
from .bounds import certified_norm as certified_norm
from .bounds import certified_tau as certified_tau
from .bounds import gamma as gamma
from .bounds import rho as rho
from .bounds import tau_star as tau_star
from .convergence import gradient_norm_bound as gradient_norm_bound
from .counting import joint_edge_probabilities as joint_edge_probabilities
from .counting import num_partitions as num_partitions
from .counting import num_partitions_with_edge as num_partitions_with_edge
from .covering import covering_estimate as covering_estimate
from .covering import covering_matrix as covering_matrix
from .covering import optimal_probabilities as optimal_probabilities
from .enumeration import enumerate_partitions as enumerate_partitions
from .inclusion import h_regular_inclusion as h_regular_inclusion
from .inclusion import h_regular_inclusion_dense as h_regular_inclusion_dense
from .variance import exact_variance as exact_variance
from .variance import family_h_variance as family_h_variance
from .variance import family_optimal_variance as family_optimal_variance
from .variance import h_regular_variance as h_regular_variance
from .variance import horvitz_thompson_variance as horvitz_thompson_variance
from .variance import optimal_variance as optimal_variance
from .variance import sweep_variance as sweep_variance
from .variance import uniform_variance as uniform_variance

__all__ = [
    "balance",
    "balanced_tau_ratio",
    "certified_norm",
    "certified_tau",
    "covering_estimate",
    "covering_matrix",
    "enumerate_partitions",
    "exact_variance",
    "family_h_variance",
    "family_optimal_variance",
    "gamma",
    "gradient_norm_bound",
    "h_regular_inclusion",
    "h_regular_inclusion_dense",
    "h_regular_variance",
    "horvitz_thompson_variance",
    "joint_edge_probabilities",
    "num_partitions",
    "num_partitions_with_edge",
    "optimal_probabilities",
    "optimal_variance",
    "rho",
    "sweep_variance",
    "tau_star",
    "uniform_variance",
]
