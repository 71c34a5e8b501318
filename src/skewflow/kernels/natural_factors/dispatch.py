"""Natural steps by factors: the state of the weights, and the choice of the code."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .._runtime.graphs import is_capturing
from ..multiply_parts import SHARED
from .reference import natural_factors

if TYPE_CHECKING:  # Triton is imported on use
    from ._launches_triton import NaturalWorkspace

LARGEST = 128
"""Highest rank of the CUDA kernels: one program factorises a matrix of this many rows."""

KEYS = ("inverse_moment", "moment_numbers", "moment_direction")


class NaturalFactors:
    """Natural factors, and the memory that their kernels need on CUDA."""

    def __init__(self) -> None:
        self._workspaces: dict[tuple[object, ...], NaturalWorkspace] = {}

    def __call__(
        self,
        state: dict[str, Any],
        X: Float[Tensor, "n d k"],
        A: Float[Tensor, "n d r"],
        B: Float[Tensor, "n k r"],
    ) -> tuple[Float[Tensor, "n d r"], Float[Tensor, "n k r"], Bool[Tensor, ""] | None]:
        """The same as `natural_factors`.

        Args:
            state: Of the weight.
            X: Its points.
            A: Left factors of the gradient.
            B: Right factors.

        Returns:
            Both factors, and whether everything was finite; None if only a NaN in the left factor
            says that it was not. Kernels return memory that the next call overwrites.
        """
        rank = B.shape[-1]
        if not has_kernel(X, rank):
            _check_capture(X, rank, "of a kind that no kernel takes")
            return natural_factors(_memory(state, X), X, A, B)
        from ._launches_triton import NaturalWorkspace, size_for

        kind = (X.shape, X.device, size_for(rank))
        if KEYS[0] not in state or kind not in self._workspaces:  # their beginning cannot be a part
            _check_capture(X, rank, "the first of its rank")
        if kind not in self._workspaces:
            self._workspaces[kind] = NaturalWorkspace(X, rank)
        return *self._workspaces[kind](X, A, B, _memory(state, X)), None


def has_kernel(X: Tensor, rank: int) -> bool:
    """Whether the CUDA kernels take such points, and gradients of this rank."""
    if X.device.type != "cuda" or X.dtype != torch.float32 or rank > LARGEST:
        return False
    from .._runtime._launch_triton import shared_memory

    return shared_memory(X.device) >= SHARED


def _check_capture(X: Tensor, rank: int, what: str) -> None:
    """Raise if a CUDA graph is being captured but this step cannot be part of it."""
    if is_capturing():
        raise RuntimeError(
            "a natural step can be captured in a CUDA graph if it is of float32, of rank "
            f"{LARGEST} at most, on a GPU with {SHARED // 1024} KiB of shared memory for a "
            f"program, and not the first of its rank: this one, of {X.dtype} and rank {rank}, "
            f"is {what}. Take a step outside of the graph first, or all of them."
        )


def begin_moment(state: dict[str, Any], X: Float[Tensor, "n d k"]) -> None:
    """Add to a state the moment of no factors: its inverse, its numbers, a vector."""
    n, _, k = X.shape
    kind: Any = {"dtype": X.dtype, "device": X.device}
    with torch.inference_mode(False):  # later steps may write to it outside of that mode
        inverse = torch.eye(k, **kind).repeat(n, 1, 1)
        numbers, v = torch.zeros(2, n, 1, 1, **kind), torch.full((n, k, 1), k**-0.5, **kind)
    state.update(zip(KEYS, (inverse, numbers, v), strict=True))


def _memory(state: dict[str, Any], X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The moment in a state, in the dtype and on the device of the points."""
    if KEYS[0] not in state:
        begin_moment(state, X)
    for key in KEYS:  # the parameter may have been moved
        if state[key].dtype != X.dtype or state[key].device != X.device:
            with torch.inference_mode(False):
                state[key] = state[key].to(X)
    H, numbers, v = (state[key] for key in KEYS)
    return H, numbers, v
