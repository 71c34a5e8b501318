"""Optimisers on orthogonal matrices, with the interface of torch.optim."""

from .angle_sgd import AngleSGD as AngleSGD
from .combined import CombinedOptimizer as CombinedOptimizer
from .factor_capture import capture_factors as capture_factors
from .factored_gradient import FactoredGradient as FactoredGradient
from .flow_adam import FlowAdam as FlowAdam
from .flow_sgd import FlowSGD as FlowSGD
from .natural_sgd import NaturalSGD as NaturalSGD
from .report import Report as Report
from .split import split_parameters as split_parameters

__all__ = [
    "AngleSGD",
    "CombinedOptimizer",
    "FactoredGradient",
    "FlowAdam",
    "FlowSGD",
    "NaturalSGD",
    "Report",
    "capture_factors",
    "split_parameters",
]
