"""Orthogonal weights in networks: layers, marks, initialisation and orthogonality errors."""

from .conv import OrthogonalConv2d as OrthogonalConv2d
from .givens import GivensLinear as GivensLinear
from .init import orthogonal_ as orthogonal_
from .init import torus_ as torus_
from .linear import OrthogonalLinear as OrthogonalLinear
from .marks import mark_orthogonal as mark_orthogonal
from .marks import orthogonal_parameters as orthogonal_parameters
from .modrelu import ModReLU as ModReLU
from .ode import BracketGenerator as BracketGenerator
from .ode import OrthogonalODE as OrthogonalODE
from .orthogonality import orthogonality_error as orthogonality_error
from .orthogonality import orthogonality_errors as orthogonality_errors
from .orthogonality import project_ as project_
from .rnn import OrthogonalRNN as OrthogonalRNN
from .rnn_cell import OrthogonalRNNCell as OrthogonalRNNCell
from .sylvester import SylvesterFlow as SylvesterFlow

__all__ = [
    "BracketGenerator",
    "GivensLinear",
    "ModReLU",
    "OrthogonalConv2d",
    "OrthogonalLinear",
    "OrthogonalODE",
    "OrthogonalRNN",
    "OrthogonalRNNCell",
    "SylvesterFlow",
    "mark_orthogonal",
    "orthogonal_",
    "orthogonal_parameters",
    "orthogonality_error",
    "orthogonality_errors",
    "project_",
    "torus_",
]
