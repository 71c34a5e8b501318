"""Natural steps by factors: the memory of the weights, and what computes their directions."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..kernels.natural_factors import LARGEST, has_kernel
from ..kernels.natural_factors.reference import natural_factors
from ._capturing import is_capturing
from ._weights import Weight

if TYPE_CHECKING:  # Triton is imported on use
    from ..kernels.natural_factors._launches_triton import Workspace

KEYS = ("inverse_moment", "moment_numbers", "moment_direction")


class NaturalFactors:
    """Natural factors of weights, and the memory that their kernels need on CUDA."""

    def __init__(self) -> None:
        self._workspaces: dict[Weight, Workspace] = {}
        self._captured: set[Workspace] = set()

    def __call__(
        self,
        weight: Weight,
        state: dict[str, Any],
        X: Float[Tensor, "n d k"],
        A: Float[Tensor, "n d r"],
        B: Float[Tensor, "n k r"],
    ) -> tuple[Float[Tensor, "n d r"], Float[Tensor, "n k r"], Bool[Tensor, ""] | None]:
        """As `natural_factors`.

        Args:
            weight: The weight.
            state: Its state.
            X: Its points.
            A: Left factors of the gradient.
            B: Right factors.

        Returns:
            Both factors, and whether everything was finite, or None where the left factor is NaN
            if it was not. Kernels return memory that the next step overwrites.
        """
        rank = B.shape[-1]
        fused = has_kernel(X, rank)
        if is_capturing() and not (fused and KEYS[0] in state):
            raise RuntimeError(
                f"a natural step must be in float32 with factors of rank {LARGEST} at most, and "
                f"come after another one, to be captured in a CUDA graph: got {X.dtype}, rank "
                f"{rank} and {'a' if KEYS[0] in state else 'no'} step before. Step outside of it."
            )
        memory = _memory(state, X)
        if not fused:
            return natural_factors(memory, X, A, B)
        workspace = self._workspaces.get(weight)
        if workspace is None or not workspace.fits(X, rank, memory):
            from ..kernels.natural_factors._launches_triton import Workspace

            workspace = self._workspaces[weight] = Workspace(X, rank, memory)
        if is_capturing():  # the graph knows the memory by its address
            self._captured.add(workspace)
        return *workspace(A, B), None


def _memory(state: dict[str, Any], X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is known of the moment: its inverse, its numbers, a vector; nothing at first."""
    if KEYS[0] not in state:
        n, _, k = X.shape
        kind: Any = {"dtype": X.dtype, "device": X.device}
        with torch.inference_mode(False):  # later steps may write to it outside of that mode
            inverse = torch.eye(k, **kind).repeat(n, 1, 1)
            numbers, v = torch.zeros(2, n, 1, 1, **kind), torch.full((n, k, 1), k**-0.5, **kind)
        state.update(zip(KEYS, (inverse, numbers, v), strict=True))
    for key in KEYS:  # the parameter may have been moved
        if state[key].dtype != X.dtype or state[key].device != X.device:
            state[key] = state[key].to(X)
    H, numbers, v = (state[key] for key in KEYS)
    return H, numbers, v
