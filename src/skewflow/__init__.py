"""Optimisation on O(d), SO(d) and the Stiefel manifold with one dial, the block size."""

from . import distributed as distributed
from . import errors as errors
from . import es as es
from . import flows as flows
from . import geometry as geometry
from . import kernels as kernels
from . import nn as nn
from . import optim as optim
from . import samplers as samplers
from . import tournaments as tournaments

__all__ = [
    "distributed",
    "errors",
    "es",
    "flows",
    "geometry",
    "kernels",
    "nn",
    "optim",
    "samplers",
    "tournaments",
]
__version__ = "0.1.0.dev0"
