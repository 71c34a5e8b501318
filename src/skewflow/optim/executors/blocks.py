"""A step of one weight by itself: compiled on the CPU, or drawn by a sampler on the host."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from ...kernels.block_step import step_
from ...kernels.row_moments.reference import row_moments
from ..options import is_fused
from ..plan import Alone, Plan
from ..weight import Weight, steps_taken
from .sampled_blocks import Drawn, draw, generator_of, samplers_of, turn_


def draw_all(
    plans: Sequence[Plan],
    states: Mapping[Tensor, dict[str, Any]],
    time: Callable[[torch.device], int],
) -> dict[Weight, Drawn]:
    """The draws of all samplers on the host, before a weight moves; all, or none of them."""
    on_host = [plan for plan in plans if plan.rest and not is_fused(plan.group["sampler"])]
    drawn: dict[Weight, Drawn] = {}
    if not on_host:
        return drawn
    with torch.no_grad(), ExitStack() as undo:
        for plan in on_host:
            for one in plan.rest:
                if one.weight not in plan.left_out:
                    steps, state = time(one.weight.p.device), states[one.weight.p]
                    drawn[one.weight] = _draw(plan.group, one, state, steps, undo)
        undo.pop_all()
    return drawn


def _draw(
    group: dict[str, Any], one: Alone, state: dict[str, Any], steps: int, undo: ExitStack
) -> Drawn:
    """What the samplers of a weight draw for its next step; no weight and no moment moves.

    Args:
        group: Its options.
        one: The weight, its block size and the numbers of the step.
        state: Its state.
        steps: Steps of the optimiser before.
        undo: Gets what brings samplers and generator back to where they were.
    """
    update, weight = one.update, one.weight
    assert weight.p.grad is not None and isinstance(one.size, int)
    samplers = samplers_of(state, group, weight, one.size)
    generator = generator_of(state, weight, update.seed)
    undo.callback(generator.set_state, generator.get_state())
    for sampler in samplers:
        undo.callback(sampler.load_state_dict, sampler.state_dict())
    X, G, M = _operands(weight, state)
    squares = moments = None
    if update.beta2 is not None:
        squares = state["exp_avg_sq"].clone()
        moments = row_moments(squares, G, steps_taken(state, steps), update)
    return Drawn(draw(X, G, M, update, samplers, generator, moments), squares)


def step_alone(
    one: Alone,
    state: dict[str, Any],
    steps: int,
    drawn: Drawn | None,
    store: Callable[[Weight, Tensor], None],
) -> None:
    """Step it.

    Args:
        one: The weight, its block size and the numbers of the step.
        state: Its state.
        steps: Steps of the optimiser before.
        drawn: What its samplers have drawn; None where the kernels draw.
        store: Brings the stepped points into the parameter, if they are a copy.
    """
    update, weight, size = one.update, one.weight, one.size
    assert isinstance(size, int)
    X, G, M = _operands(weight, state)
    if drawn is not None:
        turn_(X, G, M, update, drawn.estimates)
        if drawn.squares is not None:
            state["exp_avg_sq"].copy_(drawn.squares)
    else:
        moments = None
        if update.beta2 is not None:
            moments = row_moments(state["exp_avg_sq"], G, steps_taken(state, steps), update)
        step_(X, G, M, steps, update, size, moments)
    if M is not None and M.data_ptr() != state["momentum_buffer"].data_ptr():
        state["momentum_buffer"].copy_(weight.view.restore(M))  # M was a copy
    store(weight, X)


def _operands(weight: Weight, state: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """The points, their gradient and their momentum, as matrices."""
    assert weight.p.grad is not None
    M = weight.view(state["momentum_buffer"]) if "momentum_buffer" in state else None
    return weight.view(weight.points(state)), weight.view(weight.p.grad), M
