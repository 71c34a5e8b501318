"""Products for some matrices of a batch; the device decides for which."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...errors import NonFiniteError
from .._runtime.devices import on
from . import reference


def multiply_where_(
    out: Float[Tensor, "n a c"],
    A: Float[Tensor, "n a b"],
    B: Float[Tensor, "n b c"],
    live: Bool[Tensor, "n"],
    C: Float[Tensor, "n a c"] | None = None,
    alpha: float | Float[Tensor, "n"] = 1.0,
    beta: float = 0.0,
) -> None:
    r"""`out` becomes $\alpha AB + \beta C$ where `live` is true and stays what it is elsewhere.

    On CUDA the programs of matrices that are not live end at once. So a step whose length only the
    device knows costs no more than it needs, and the host does not wait. Float64 has no such
    kernel: all matrices are computed. Not in the paper.

    Args:
        out: Where the results go; not in A or B.
        A: Left factors.
        B: Right factors.
        live: Which matrices to compute.
        C: What is added.
        alpha: Factor of the products, one for all or one for each.
        beta: Factor of `C`.

    Example:
        >>> out, A = torch.zeros(2, 1, 1), torch.full((2, 1, 1), 3.0)
        >>> multiply_where_(out, A, A, torch.tensor([False, True]))
        >>> out.ravel()
        tensor([0., 9.])
    """
    if out.device.type == "cuda" and has_kernel(out):
        from ._triton import multiply_where_ as fused

        with on(out.device):
            fused(out, A, B, live, C, alpha, beta)
    else:
        reference.multiply_where_(out, A, B, live, C, alpha, beta)


def num_rounds(needed: Tensor, most: int, A: Float[Tensor, "n a b"]) -> int:
    """The number of rounds that the host launches, given what the matrices of a batch need.

    On CUDA with a kernel it launches all of them, because unneeded rounds cost almost nothing.
    Otherwise the host waits for the number, unless a graph is captured.

    Args:
        needed: Rounds that each matrix needs.
        most: The largest possible number.
        A: What is multiplied.

    Raises:
        NonFiniteError: If the host waits, and one of the numbers is NaN.

    Example:
        >>> num_rounds(torch.tensor([0, 3]), 10, torch.zeros(2, 5, 5))
        3
    """
    if needed.device.type != "cpu" and (has_kernel(A) or torch.cuda.is_current_stream_capturing()):
        return most
    rounds = float(needed.max())
    if math.isnan(rounds):
        raise NonFiniteError(
            "a matrix must be finite to be exponentiated or projected: its norm is NaN. Look for "
            "an overflow, or for a weight that is far from orthogonal."
        )
    return int(rounds)


def has_kernel(A: Float[Tensor, "n a b"]) -> bool:
    """Whether the CUDA kernel takes such results."""
    return A.dtype == torch.float32


def choose_buffer(
    times: Float[Tensor, "n"],
    rounds: int,
    now: Float[Tensor, "n a b"],
    then: Float[Tensor, "n a b"],
) -> Float[Tensor, "n a b"]:
    """The last result of each matrix, when results went into two buffers in turn.

    Args:
        times: Rounds in which a matrix was live, the first ones.
        rounds: All rounds.
        now: The buffer that the last round wrote to.
        then: The other.
    """
    return torch.where(((times - rounds) % 2 == 0)[:, None, None], now, then)
