r"""The exact step along the geodesic, $\exp(-lr\,\Omega)X$ with all of $\Omega$ (Eq. 4)."""

from .dispatch import exponential_step as exponential_step

__all__ = ["exponential_step"]
