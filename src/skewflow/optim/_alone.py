"""A step of one weight by itself: compiled on the CPU, or drawn by a sampler on the host."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..kernels._dispatch import step_
from ..kernels.row_moments.reference import row_moments
from ._plan import Alone
from ._sampled import generator_of, sampled_step_, samplers_of
from ._weights import Weight


def step_alone(
    group: dict[str, Any],
    one: Alone,
    state: dict[str, Any],
    steps: int,
    store: Callable[[Weight, Tensor], None],
) -> None:
    """Step it.

    Args:
        group: Its options.
        one: The weight, its block size and the numbers of the step.
        state: Its state.
        steps: Steps done before.
        store: Brings the stepped points into the parameter, if they are a copy.
    """
    update, weight, size = one.update, one.weight, one.size
    assert weight.p.grad is not None and isinstance(size, int)
    X, G = weight.view(weight.points(state)), weight.view(weight.p.grad)
    M = weight.view(state["momentum_buffer"]) if "momentum_buffer" in state else None
    w = None
    if update.beta2 is not None:
        w = row_moments(state["exp_avg_sq"], G, steps - state["since"], update)
    if group["sampler"] == "uniform":
        step_(X, G, M, steps, update, size, w)
    else:
        samplers = samplers_of(state, group, weight, size)
        generator = generator_of(state, weight, update.seed)
        sampled_step_(X, G, M, update, samplers, generator, w)
    if M is not None and M.data_ptr() != state["momentum_buffer"].data_ptr():
        state["momentum_buffer"].copy_(weight.view.restore(M))  # M was a copy
    store(weight, X)
