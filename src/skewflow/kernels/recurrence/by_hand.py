"""`recurrence` with its backward pass by hand: one product a step in each direction, in place."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from .reference import recurrence

LARGEST_WIDTH = 256
"""Largest width for which one CUDA kernel runs the whole sequence: W should stay in the cache of
each core."""
WIDTH_UNIT = 16
"""The kernel's width must be a multiple of this value; units that are always zero pad it."""


def recurrence_by_hand(
    u: Float[Tensor, "l b d"],
    h_0: Float[Tensor, "b d"],
    W: Float[Tensor, "d d"],
    bias: Float[Tensor, "d"] | None = None,
) -> Float[Tensor, "l b d"]:
    """`recurrence`, all arguments of one dtype; differentiated twice it is the reference."""
    states: Tensor = _Recurrence.apply(u, h_0, W, bias)  # type: ignore[no-untyped-call]
    return states


class _Recurrence(torch.autograd.Function):
    """Keeps the states only: the slope of either f is a function of its value."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, h_0: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
        ctx.fused = _has_kernel(u)
        ctx.more = -W.shape[0] % WIDTH_UNIT if ctx.fused else 0
        states = pad(torch.cat([h_0.unsqueeze(0), u]), (0, ctx.more))
        if ctx.fused:
            from ._triton import advance

            wide = None if bias is None else pad(bias, (0, ctx.more))
            with torch.cuda.device(u.device):
                advance(states, pad(W, (0, ctx.more, 0, ctx.more)), wide).once()
        else:
            _advance_(states, W, bias)
        ctx.save_for_backward(u, h_0, W, bias, states)
        return states[1:, :, : W.shape[0]]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, h_0, W, bias, states = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated, too
            return _differentiable(u, h_0, W, bias, grad)
        # Row t: the gradient of what f was applied to at step t; row 0: that of h_0.
        down = pad(torch.cat([torch.zeros_like(h_0).unsqueeze(0), grad]), (0, ctx.more))
        if ctx.fused:
            from ._triton import retreat

            with torch.cuda.device(u.device):
                retreat(down, states, pad(W, (0, ctx.more, 0, ctx.more)), bias).once()
        else:
            _retreat_(down, states, W, bias)
        down, states = down[..., : W.shape[0]], states[..., : W.shape[0]]
        grad_W = down[1:].flatten(0, 1).mT @ states[:-1].flatten(0, 1)
        grad_bias = None if bias is None else (down[1:] * states[1:].sign()).sum((0, 1))
        return down[1:], down[0], grad_W, grad_bias


def _has_kernel(u: Tensor) -> bool:
    """Whether a CUDA kernel takes such inputs."""
    fits = u.shape[-1] <= LARGEST_WIDTH and u.dtype == torch.float32 and u.numel() > 0
    return u.device.type == "cuda" and fits


def _advance_(states: Tensor, W: Tensor, bias: Tensor | None) -> None:
    """Turn inputs into states, from the second row on."""
    size = torch.empty_like(states[0])
    for h, z in zip(states[:-1].unbind(), states[1:].unbind(), strict=True):
        z.addmm_(h, W.mT)
        if bias is None:
            z.tanh_()
        else:
            torch.abs(z, out=size).add_(bias).relu_()
            z.sign_().mul_(size)


def _retreat_(down: Tensor, states: Tensor, W: Tensor, bias: Tensor | None) -> None:
    """Turn gradients of states into those of the arguments of f, from the last row on."""
    slopes = 1 - states.square() if bias is None else (states != 0).to(states.dtype)
    for t in range(len(down) - 1, 0, -1):
        down[t - 1].addmm_(down[t].mul_(slopes[t]), W)


def _differentiable(
    u: Tensor, h_0: Tensor, W: Tensor, bias: Tensor | None, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients through the reference, for those that need one."""
    states = recurrence(u, h_0, W, bias)
    inputs = (u, h_0, W, bias)
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(states, wanted, grad, create_graph=True))
    return tuple(next(found) if x is not None and x.requires_grad else None for x in inputs)
