r"""The exact step by Cayley's transform of all of $\Omega$ (Eq. 4)."""

from .reference import cayley_step as cayley_step

__all__ = ["cayley_step"]
