"""The leapfrog of `OrthogonalODE`, and the gradient that runs it backwards (not in the paper).

One copy of (x, W) stands at the times 0, eta, 2 eta, ... and the other at eta / 2, 3 eta / 2, ...
Each move takes one copy on by a whole step with the velocity at the other copy, which stands in the
middle of that step. The other copy is still there afterwards, so the move can be undone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import ShapeError
from ..geometry.precision import no_autocast
from ..kernels.permutation.reference import make_key, mix
from ..kernels.rotate_rounds import rotate_rounds

State = tuple[Float[Tensor, "*batch d"], Float[Tensor, "d d"]]
"""x and W; W is in float64, so that 1,000 rotations leave it orthogonal."""


@dataclass(frozen=True)
class Flow:
    """What a layer integrates, and how; see `OrthogonalODE`."""

    method: str
    num_steps: int
    time: float
    activation: Callable[[Tensor], Tensor]
    generator: nn.Module
    sweep: Int[Tensor, "n m 2"] | None
    seed: Int[Tensor, ""] | None

    @property
    def eta(self) -> float:
        """The size of a step."""
        return self.time / self.num_steps

    @property
    def num_moves(self) -> int:
        """Moves of either copy after the half step at the start."""
        return 2 * self.num_steps - 1

    def move(self, one: State, other: State, bias: Tensor, k: int, back: bool = False) -> State:
        """Take one copy on, or back, by the velocity at the other, which stands at k eta / 2.

        Number 0 is the half step from the start.
        """
        (x, W), (z, V) = one, other
        size = self.eta / 2 if k == 0 else self.eta
        velocity = self.activation(z @ V.to(z.dtype).mT + bias.to(z.dtype))
        A = size * self._omega(k * self.eta / 2, V)
        if back:
            return x - size * velocity, self._rotate(W, -A, k)
        return x + size * velocity, self._rotate(W, A, k)

    def _omega(self, t: float, W: Tensor) -> Float[Tensor, "d d"]:
        """The generator in float64; the user's module computes in the dtype of its parameters."""
        own = next(iter(self.generator.parameters()), W).dtype
        M = self.generator(torch.tensor(t, dtype=own, device=W.device), W.to(own)).to(W.dtype)
        if M.shape != W.shape:
            raise ShapeError(
                f"`generator` must return a matrix of the shape of W, {tuple(W.shape)}: got "
                f"{tuple(M.shape)}."
            )
        return (M - M.mT) / 2

    def _rotate(self, W: Tensor, A: Tensor, k: int) -> Float[Tensor, "d d"]:
        """W times the rotation of this method for the generator A; that of -A is its inverse."""
        if self.method == "exact":
            return W @ torch.linalg.matrix_exp(A)
        if self.method == "stochastic":
            d = len(A)
            assert self.seed is not None
            rows = torch.arange(d, device=A.device)
            key = make_key(self.seed, torch.zeros_like(self.seed), torch.full_like(self.seed, k))
            pairs = mix(rows ^ key).argsort()[: d // 2 * 2].view(1, -1, 2)
            scale = float(d - 1 if d % 2 == 0 else d)  # 1 / P(e)
        else:
            assert self.sweep is not None
            pairs, scale = self.sweep, 0.5  # the sweep holds each plane twice
        i, j = pairs.long().unbind(-1)
        # A column of W times exp(A) turns by minus the entry; see `rotate_pairs` for the sign.
        return rotate_rounds(W, pairs.int(), -scale * A[i, j])


@no_autocast()
def march(flow: Flow, x: Tensor, W: Tensor, bias: Tensor) -> State:
    """The end of the flow, through which autograd goes."""
    one = x, W
    other = flow.move(one, one, bias, 0)
    for k in range(1, flow.num_moves + 1):
        one, other = _next(flow, one, other, bias, k)
    return one


def adjoint(flow: Flow, x: Tensor, W: Tensor, bias: Tensor) -> State:
    """The end of the flow; its gradient goes back along the flow and stores no step."""
    found: State = _Adjoint.apply(flow, x, W, bias, *flow.generator.parameters())  # type: ignore[no-untyped-call]
    return found


class _Adjoint(torch.autograd.Function):
    """Saves the two copies at the end; the backward pass recomputes all earlier states."""

    @staticmethod
    def forward(ctx: Any, flow: Flow, x: Tensor, W: Tensor, bias: Tensor, *params: Tensor) -> State:
        with no_autocast():
            one = x, W
            other = flow.move(one, one, bias, 0)
            for k in range(1, flow.num_moves + 1):
                one, other = _next(flow, one, other, bias, k)
        ctx.flow = flow
        # The parameters are saved so that autograd notices a change of them before the backward.
        ctx.save_for_backward(x, W, bias, *one, *other, *params)
        return one

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, grad_W: Tensor) -> tuple[Tensor | None, ...]:
        flow, params = ctx.flow, list(ctx.flow.generator.parameters())
        x, W, bias, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated, too
            wanted = [p for p in (x, W, bias, *params) if p.requires_grad]
            end = march(flow, x, W, bias)
            found = iter(torch.autograd.grad(end, wanted, (grad_x, grad_W), create_graph=True))
            return None, *(next(found) if p.requires_grad else None for p in (x, W, bias, *params))
        one, other = tuple(saved[:2]), tuple(saved[2:4])
        grad_one, grad_other = (grad_x, grad_W), (torch.zeros_like(x), torch.zeros_like(W))
        total = [torch.zeros_like(p) for p in (bias, *params)]
        with no_autocast():
            for k in range(flow.num_moves, 0, -1):
                if k % 2:
                    one = flow.move(one, other, bias, k, back=True)
                    grad_one, more = _pull(flow, one, other, bias, params, k, grad_one, total)
                    grad_other = _plus(grad_other, more)
                else:
                    other = flow.move(other, one, bias, k, back=True)
                    grad_other, more = _pull(flow, other, one, bias, params, k, grad_other, total)
                    grad_one = _plus(grad_one, more)
            one = x, W  # exactly
            first, more = _pull(flow, one, one, bias, params, 0, grad_other, total)
        grad_one = _plus(_plus(grad_one, first), more)
        return None, *grad_one, *total


def _next(flow: Flow, one: State, other: State, bias: Tensor, k: int) -> tuple[State, State]:
    """Both copies after a move."""
    if k % 2:
        return flow.move(one, other, bias, k), other
    return one, flow.move(other, one, bias, k)


def _pull(
    flow: Flow,
    one: State,
    other: State,
    bias: Tensor,
    params: list[Tensor],
    k: int,
    grad: State,
    total: list[Tensor],
) -> tuple[State, State]:
    """The gradients of both copies before a move; those of the parameters are added to `total`."""
    with torch.enable_grad():
        inputs = [value.detach().requires_grad_() for value in (*one, *other, bias)]
        moved = flow.move((inputs[0], inputs[1]), (inputs[2], inputs[3]), inputs[4], k)
        trained = [p for p in params if p.requires_grad]
        found = torch.autograd.grad(moved, [*inputs, *trained], grad, allow_unused=True)
    places = [0, *(1 + i for i, p in enumerate(params) if p.requires_grad)]
    for place, more in zip(places, found[4:], strict=True):
        if more is not None:
            total[place] = total[place] + more  # not in place: `more` may be a batch of vmap
    first, second, third, fourth = (
        torch.zeros_like(value) if more is None else more
        for value, more in zip(inputs[:4], found[:4], strict=True)
    )
    return (first, second), (third, fourth)


def _plus(first: State, second: State) -> State:
    return first[0] + second[0], first[1] + second[1]
