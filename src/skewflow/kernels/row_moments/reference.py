"""Reference of `row_moments`: Adam's second moment, one number a row (not in the paper)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..update import Update


def row_moments(
    squares: Float[Tensor, "n d"],
    G: Float[Tensor, "n d k"],
    step: int | Int[Tensor, ""],
    update: Update,
) -> Float[Tensor, "n d"]:
    r"""Update the mean squares of the rows in place, and return the divisors of planes.

    $v_i \leftarrow \beta_2 v_i + (1 - \beta_2) \|G_i\|^2 / k$. The momentum buffer of a step holds
    $M = \sum_l \beta_1^l G$, which is Adam's corrected first moment times
    $b = (1 - \beta_1^t) / (1 - \beta_1)$; so the result is
    $w_i = b^2 (\sqrt{v_i / (1 - \beta_2^t)} + \epsilon)^2$, and the entry (i, j) of the generator
    of M over $\sqrt{(w_i + w_j)/2}$ is the one Adam would divide. A row whose gradient is not
    finite is not updated. The result is never zero, so the angle of a plane without gradients is
    zero over a tiny number, not zero over zero.

    Args:
        squares: v, written to.
        G: Euclidean gradients.
        step: t - 1, steps that the matrices have taken before; on CUDA it may be there.
        update: beta1 (its momentum), beta2 and eps.

    Example:
        >>> v = torch.zeros(1, 2)
        >>> row_moments(v, torch.ones(1, 2, 3), 0, Update(lr=0.1, momentum=0.9, beta2=0.99))
        tensor([[1., 1.]])
    """
    return moments_of(squares, G.to(squares.dtype).square().mean(-1), step, update)


def moments_of(
    squares: Float[Tensor, "n d"],
    now: Float[Tensor, "n d"],
    step: int | Int[Tensor, ""],
    update: Update,
) -> Float[Tensor, "n d"]:
    """`row_moments`, given the mean squares of the rows of the gradient."""
    assert update.beta2 is not None
    moved = update.beta2 * squares + (1 - update.beta2) * now
    squares.copy_(torch.where(torch.isfinite(now), moved, squares))
    t = step.double() + 1 if isinstance(step, Tensor) else step + 1
    b = (1 - update.momentum**t) / (1 - update.momentum)
    root = (squares / (1 - update.beta2**t)).sqrt() + update.eps
    return (b * root).square().clamp_(min=torch.finfo(root.dtype).tiny)
