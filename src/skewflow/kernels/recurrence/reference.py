"""Reference of `recurrence`: the plain loop, through which autograd goes (Sec. 6.1)."""

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import ShapeError


def recurrence(
    u: Float[Tensor, "l b d"],
    h_0: Float[Tensor, "b d"],
    W: Float[Tensor, "d d"],
    bias: Float[Tensor, "d"] | None = None,
) -> Float[Tensor, "l b d"]:
    r"""The states $h_t = f(u_t + W h_{t-1})$ of a recurrent net, as in Sec. 6.1.

    Args:
        u: Transformed inputs of all steps.
        h_0: The initial state, which is not returned.
        W: Transition; it need not be orthogonal.
        bias: b of modReLU, $f(z) = \mathrm{sign}(z)\,\mathrm{relu}(|z| + b)$; f is tanh if omitted.

    Raises:
        ShapeError: If the sizes do not fit.

    Example:
        >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> h_0 = torch.tensor([[1.0, 2.0]])
        >>> recurrence(torch.zeros(2, 1, 2), h_0, turn, torch.zeros(2))[:, 0].tolist()
        [[-2.0, 1.0], [-1.0, -2.0]]
    """
    _check(u, h_0, W, bias)
    h, states = h_0, []
    for now in u.unbind():
        z = now + h @ W.mT
        h = torch.tanh(z) if bias is None else z.sign() * torch.relu(z.abs() + bias)
        states.append(h)
    return torch.stack(states)


def _check(u: Tensor, h_0: Tensor, W: Tensor, bias: Tensor | None) -> None:
    d = W.shape[-1]
    sizes = (W.shape, h_0.shape[1:], u.shape[1:], d if bias is None else bias.shape[0])
    if u.ndim != 3 or len(u) == 0 or sizes != ((d, d), (d,), h_0.shape, d):
        shapes = [tuple(x.shape) for x in (u, h_0, W)]
        raise ShapeError(
            "`u`, `h_0`, `W` and `bias` must have the shapes (l, b, d), (b, d), (d, d) and (d,) "
            f"with l >= 1: got {', '.join(map(str, shapes))} and "
            f"{None if bias is None else tuple(bias.shape)}."
        )
