r"""One Newton-Schulz step back to the manifold, and the residual that triggers it."""

from .dispatch import polish_ as polish_
from .reference import residuals as residuals

__all__ = ["polish_", "residuals"]
