"""The numbers of one step, the same for every kernel, and its arithmetic on the gradient."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

LARGEST_ANGLE = {torch.float32: 2.0**12, torch.float64: 2.0**24}
"""Largest rotation of a plane, in radians, by the dtype of a step. The digits of larger angles are
lost to rounding, and each doubling costs a product and a digit of orthogonality."""

LARGEST_GRADIENT = {
    torch.float64: 1e100,
    torch.float32: 1e18,
    torch.bfloat16: 1e18,
    torch.float16: torch.finfo(torch.float16).max,
}
"""Largest entry of a gradient whose squares and products do not overflow."""


@dataclass(frozen=True)
class Update:
    """The numbers and switches of one step: the options of SGD, and how blocks are drawn.

    Args:
        lr: Step size; a positive one descends.
        seed: Seed of the permutations.
        stream: Number of the first matrix of the parameter; the others follow it.
        momentum: Factor on the momentum buffer; 0 keeps none.
        nesterov: Look ahead along the momentum.
        maximize: Ascend instead.
        retraction: "exp" or "cayley".
        independent: Draw every matching independently, not in sweeps that meet each plane once.
        beta2: Memory of the second moment; None keeps none.
        eps: Added to its root.
        angle: The angle that `lr` is, the root mean square over the planes or that of each; None
            for the unbiased law, where `lr` multiplies the estimate of the generator.
        num_draws: Draws at one point, each of which turns by lr / num_draws.
    """

    lr: float
    seed: int = 0
    stream: int = 0
    momentum: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    retraction: Literal["exp", "cayley"] = "exp"
    independent: bool = False
    beta2: float | None = None
    eps: float = 0.0
    angle: Literal["rms", "spectral"] | None = None
    num_draws: int = 1

    @property
    def lr_of_draw(self) -> float:
        """The step size of one draw."""
        return self.lr / self.num_draws

    def with_stream(self, stream: int) -> "Update":
        """The same for the matrix with another number."""
        return replace(self, stream=stream)


def direction(
    G: Float[Tensor, "*n"], M: Float[Tensor, "*n"] | None, update: Update
) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"] | None]:
    r"""The direction of descent and the new momentum: torch's SGD without dampening.

    $M \leftarrow \mu M + G$; the direction is M, with Nesterov $G + \mu M$, without momentum G.
    """
    G = -G if update.maximize else G
    if M is None:
        return G, None
    M = torch.add(G.to(M.dtype), M, alpha=update.momentum)
    return (G + update.momentum * M if update.nesterov else M), M


def beside(X: Float[Tensor, "*n k"], M: Float[Tensor, "*n k"] | None) -> Float[Tensor, "*n K"]:
    """The points and their momentum as one matrix, whose rows a rotation turns together.

    The normal part X N of a gradient, with N symmetric, has no effect at X. Rotated with X it stays
    normal, (R X) N. Without the rotation it would hold the moving point back.
    """
    return X if M is None else torch.cat([X, M], dim=-1)


def apart(
    XM: Float[Tensor, "*n K"], k: int
) -> tuple[Float[Tensor, "*n k"], Float[Tensor, "*n k"] | None]:
    """The inverse of `beside` for points of k columns."""
    return XM[..., :k], (XM[..., k:] if XM.shape[-1] > k else None)
