"""Chooses the code of the polish: products of float16 parts where they are faster."""

from jaxtyping import Float
from torch import Tensor

from .._runtime.devices import on
from ..multiply_parts import is_faster
from . import reference


def polish_(X: Float[Tensor, "n d k"]) -> None:
    """`reference.polish_` by the fastest products."""
    if is_faster(X):
        from . import _triton as by_parts

        with on(X.device):
            by_parts.polish_(X)
    else:
        reference.polish_(X)
