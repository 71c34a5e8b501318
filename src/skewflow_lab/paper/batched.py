"""A separate random partition for every matrix of a batch, in plain torch."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def draw_orders(n: int, d: int, generator: torch.Generator) -> Int[Tensor, "n d"]:
    """Uniform permutations of 0..d-1."""
    u = torch.rand(n, d, generator=generator, dtype=torch.float64, device=generator.device)
    return u.argsort(-1)


def turn_pairs(
    X: Float[Tensor, "n d k"], pairs: Int[Tensor, "n m 2"], theta: Float[Tensor, "n m"]
) -> Float[Tensor, "n d k"]:
    """`rotate_pairs` with separate disjoint pairs for every matrix."""
    i, j = (rows[..., None].expand(-1, -1, X.shape[-1]) for rows in pairs.unbind(-1))
    c, s = theta.cos()[..., None], theta.sin()[..., None]
    Xi, Xj = X.gather(1, i), X.gather(1, j)  # (n, m, k)
    return X.scatter(1, i, c * Xi + s * Xj).scatter(1, j, c * Xj - s * Xi)


def turn_blocks(
    X: Float[Tensor, "n d k"], rows: Int[Tensor, "n l s"], R: Float[Tensor, "n l s s"]
) -> Float[Tensor, "n d k"]:
    """The points with each block of rows multiplied by a rotation."""
    n, _, k = X.shape
    index = rows.reshape(n, -1, 1).expand(-1, -1, k)
    picked = X.gather(1, index).reshape(*rows.shape, k)  # (n, l, s, k)
    return X.scatter(1, index, (R @ picked).reshape(n, -1, k))
