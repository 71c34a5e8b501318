r"""The exact step to the nearest point of a tangent step."""

from .dispatch import has_small_kernel as has_small_kernel
from .dispatch import polar_step as polar_step
from .dispatch import polar_step_with_moments as polar_step_with_moments

__all__ = ["has_small_kernel", "polar_step", "polar_step_with_moments"]
