"""`rotate_pairs` in numba and in place, for pairs that a sampler has drawn on the host."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import math
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from .._runtime.numba_loops import kept, mark_written
from .._runtime.update_cpu import LARGEST_TURN
from .cpu import _turn


def rotate_given_pairs_(
    X: Float[Tensor, "d k"],
    M: Float[Tensor, "d k"] | None,
    pairs: Int[Tensor, "m 2"],
    theta: Float[Tensor, "m"],
    retraction: Literal["exp", "cayley"] = "exp",
) -> None:
    """`rotate_pairs` of the rows of `X`, and of those of `M`, in place on CPU tensors.

    Rows that are not contiguous go through a copy. An infinite angle is cut to a finite one.

    Args:
        X: Matrix to rotate, float32 or float64.
        M: Another of its shape and dtype that turns with it, or None.
        pairs: Disjoint row indices (i, j); not checked.
        theta: Angle of each pair, float64.
        retraction: "exp" or "cayley".

    Example:
        >>> import torch
        >>> X = torch.eye(2)
        >>> rotate_given_pairs_(X, None, torch.tensor([[0, 1]]), torch.tensor([0.1]).double())
        >>> X
        tensor([[ 0.9950,  0.0998],
                [-0.0998,  0.9950]])
    """
    i, j = (rows.numpy() for rows in pairs.unbind(-1))
    for A in (X, M):
        if A is not None:
            rows = A.detach().contiguous()
            _rotate(rows.numpy(), i, j, theta.numpy(), retraction == "cayley")
            if rows.data_ptr() != A.data_ptr():
                A.copy_(rows)
    mark_written(X, M)


@kept
def _rotate(x, i, j, theta, cayley):
    for e in range(theta.size):
        angle = min(max(theta[e], -LARGEST_TURN), LARGEST_TURN)
        angle = 2.0 * math.atan(angle / 2.0) if cayley else angle
        _turn(x[i[e]], x[j[e]], x.dtype.type(math.cos(angle)), x.dtype.type(math.sin(angle)))
