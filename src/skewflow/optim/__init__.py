"""Optimisers on orthogonal matrices, with the manners of torch.optim."""

from .flow_sgd import FlowSGD as FlowSGD

__all__ = ["FlowSGD"]
