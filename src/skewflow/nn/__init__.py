"""Orthogonal weights in networks: layers, marks and initialisation."""

from .conv import OrthogonalConv2d as OrthogonalConv2d
from .init import orthogonal_ as orthogonal_
from .linear import OrthogonalLinear as OrthogonalLinear
from .marks import mark_orthogonal as mark_orthogonal
from .marks import orthogonal_parameters as orthogonal_parameters

__all__ = [
    "OrthogonalConv2d",
    "OrthogonalLinear",
    "mark_orthogonal",
    "orthogonal_",
    "orthogonal_parameters",
]
