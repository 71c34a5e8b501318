"""Mahalanobis metrics learned on ST(d, k); needs scikit-learn."""

from .estimator import MahalanobisMetric as MahalanobisMetric
