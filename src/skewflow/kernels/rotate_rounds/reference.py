"""Reference of `rotate_rounds`: plain torch, through which autograd goes (Eq. 9)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def rotate_rounds(
    x: Float[Tensor, "b d"], pairs: Int[Tensor, "n m 2"], theta: Float[Tensor, "n m"]
) -> Float[Tensor, "b d"]:
    r"""The vectors $R_n \cdots R_1 x$, where $R_r$ turns the pairs of round r.

    The entries (i, j) of a pair become $\cos\theta\,x_i + \sin\theta\,x_j$ and
    $\cos\theta\,x_j - \sin\theta\,x_i$, as in `rotate_pairs`.

    Args:
        x: Vectors, one in each row.
        pairs: Disjoint pairs (i, j) for each round; not checked.
        theta: The angle of each pair, of the dtype of `x`.

    Example:
        >>> pairs = torch.tensor([[[0, 1]], [[1, 2]]])
        >>> turn = torch.full((2, 1), torch.pi / 2)
        >>> rotate_rounds(torch.tensor([[1.0, 2.0, 3.0]]), pairs, turn).round()
        tensor([[2., 3., 1.]])
    """
    for partner, c, s in zip(*_by_entry(x, pairs, theta), strict=True):
        x = c * x + s * x[:, partner]
    return x


def rotate_rounds_backward(
    grad: Float[Tensor, "b d"],
    y: Float[Tensor, "b d"],
    pairs: Int[Tensor, "n m 2"],
    theta: Float[Tensor, "n m"],
) -> tuple[Float[Tensor, "b d"], Float[Tensor, "n m"]]:
    r"""The gradients of x and theta from that of the result `y` and from `y` itself.

    After a round its angle has the gradient $\sum_b g_i y_j - g_j y_i$; the rotation back gives y
    and g before the round, so that no round has to be stored.

    Args:
        grad: Gradient of the result.
        y: The result.
        pairs: As in `rotate_rounds`.
        theta: As in `rotate_rounds`.
    """
    partners, cosines, sines = _by_entry(y, pairs, theta)
    grad_theta = []
    for r in range(len(pairs) - 1, -1, -1):
        i, j = pairs[r].long().unbind(-1)
        grad_theta.append((grad[:, i] * y[:, j] - grad[:, j] * y[:, i]).sum(0))
        partner, c, s = partners[r], cosines[r], sines[r]
        y, grad = c * y - s * y[:, partner], c * grad - s * grad[:, partner]
    return grad, torch.stack(grad_theta[::-1])


def _by_entry(
    x: Tensor, pairs: Tensor, theta: Tensor
) -> tuple[Int[Tensor, "n d"], Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """For each round and entry its partner, the cosine, and the sine with the sign it takes."""
    n, d = len(pairs), x.shape[1]
    i, j = pairs.long().unbind(-1)
    c, s = theta.cos(), theta.sin()
    partner = torch.arange(d, device=x.device).repeat(n, 1).scatter(1, i, j).scatter(1, j, i)
    cosine = c.new_ones(n, d).scatter(1, i, c).scatter(1, j, c)
    sine = s.new_zeros(n, d).scatter(1, i, s).scatter(1, j, -s)
    return partner, cosine, sine
