"""Chooses the code of rounds of pairs, as a custom operation that `torch.compile` does not enter.

Half-precision vectors are rotated in float32. The backward pass keeps only the result.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import DtypeError
from .._runtime.devices import on
from . import reference


def rotate_rounds(
    x: Float[Tensor, "b d"], pairs: Int[Tensor, "n m 2"], theta: Float[Tensor, "n m"]
) -> Float[Tensor, "b d"]:
    """`reference.rotate_rounds` in the dtype of `x`, with O(d) memory a round.

    Args:
        x: Vectors, one in each row.
        pairs: Disjoint pairs (i, j) for each round, int32; they must name entries of `x`.
        theta: The angle of each pair.

    Raises:
        DtypeError: If the three are not on one device.
    """
    devices = x.device, pairs.device, theta.device
    if len(set(devices)) > 1:
        raise DtypeError(
            "vectors, pairs and angles must be on one device: got {}, {} and {}. Move the vectors, "
            "or the layer that has the angles, with `.to(...)`.".format(*devices)
        )
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        wide = _wide(x, theta)
        return reference.rotate_rounds(x.to(wide), pairs, theta.to(wide)).to(x.dtype)
    y: Tensor = _forward(x, pairs, theta)
    return y


def _wide(x: Tensor, theta: Tensor) -> torch.dtype:
    """The dtype that rotations are computed in."""
    return torch.promote_types(torch.promote_types(x.dtype, theta.dtype), torch.float32)


@torch.library.custom_op("skewflow::rotate_rounds", mutates_args=())
def _forward(x: Tensor, pairs: Tensor, theta: Tensor) -> Tensor:
    wide = _wide(x, theta)
    y = _empty(x, wide).copy_(x)
    if y.numel() and pairs.numel():
        _rotate_(y, pairs, *_turns(theta, wide))
    return y.to(x.dtype)


@_forward.register_fake
def _(x: Tensor, pairs: Tensor, theta: Tensor) -> Tensor:
    return _empty(x, x.dtype)


@torch.library.custom_op("skewflow::rotate_rounds_backward", mutates_args=())
def _backward(grad: Tensor, y: Tensor, pairs: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    wide = _wide(y, theta)
    g, back = _empty(y, wide).copy_(grad), _empty(y, wide).copy_(y)
    grad_theta = torch.zeros_like(theta, dtype=wide, memory_format=torch.contiguous_format)
    if g.numel() and pairs.numel():
        grad_theta = _rotate_back_(g, back, pairs, *_turns(theta, wide))
    return g.to(y.dtype), grad_theta.to(theta.dtype)


@_backward.register_fake
def _(grad: Tensor, y: Tensor, pairs: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    return _empty(y, y.dtype), torch.empty_like(theta, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    _, pairs, theta = inputs
    ctx.save_for_backward(output, pairs, theta)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
    y, pairs, theta = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradient will be differentiated, too
        wide = _wide(y, theta)
        found = reference.rotate_rounds_backward(grad.to(wide), y.to(wide), pairs, theta.to(wide))
        return found[0].to(y.dtype), None, found[1].to(theta.dtype)
    grad_x, grad_theta = _backward(grad, y, pairs, theta)
    return grad_x, None, grad_theta


_forward.register_autograd(_differentiate, setup_context=_keep)


def _empty(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for vectors like `x`: each vector is contiguous, on a CPU each row of the batch."""
    if x.device.type == "cpu":
        return x.new_empty(x.shape[1], x.shape[0], dtype=dtype).t()
    return x.new_empty(x.shape, dtype=dtype)


def _turns(theta: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines."""
    theta = theta.detach().to(wide).contiguous()
    return theta.cos(), theta.sin()


def _rotate_(y: Tensor, pairs: Tensor, c: Tensor, s: Tensor) -> None:
    """Turn the vectors in place."""
    if y.device.type == "cpu":
        from .cpu import rotate_rounds_

        rotate_rounds_(y.t(), pairs, c, s)
    else:
        from ._triton import advance

        with on(y.device):
            advance(y, pairs, c, s).once()


def _rotate_back_(g: Tensor, y: Tensor, pairs: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Turn gradients and vectors back, in place; the gradient of the angles."""
    if y.device.type == "cpu":
        from .cpu import rotate_rounds_back_

        return rotate_rounds_back_(g.t(), y.t(), pairs, c, s)
    from ._triton import retreat

    with on(y.device):
        sums, launch = retreat(g, y, pairs, c, s)
        launch.once()
    return sums.sum(0)
