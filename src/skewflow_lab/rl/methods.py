"""The ways of training that Sec. 6.1 compares."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from skewflow.geometry import project
from skewflow.optim import FlowSGD
from skewflow.samplers import HRegular

from .policies import affine_params, recurrent_params
from .tasks import make

Method = Literal["stoch-ortRNN", "exact-ortRNN", "vanRNN", "ortinit-vanRNN", "affine"]
"""The paper's names; the policy of the last has no state."""

ORTHOGONAL = ("stoch-ortRNN", "exact-ortRNN")
FREE = ("vanRNN", "affine")
"""Methods without an orthogonal matrix; that of ortinit-vanRNN is orthogonal after each projection.
"""


def start(
    task: str, method: Method, hidden: int, generator: torch.Generator
) -> dict[str, nn.Parameter]:
    """The parameters that a method begins with, fitting the task's sizes."""
    environment = make(task)
    sizes = environment.observation_size, len(environment.low)
    environment.close()
    if method == "affine":
        params = affine_params(*sizes)
    else:
        params = recurrent_params(
            *sizes, hidden, orthogonal=method != "vanRNN", generator=generator
        )
    return {name: nn.Parameter(p) for name, p in params.items()}


def optimizers(
    params: dict[str, nn.Parameter], method: Method, *, lr: float, orthogonal_lr: float, seed: int
) -> Sequence[torch.optim.Optimizer]:
    """SGD for all parameters, but FlowSGD for the transition of the orthogonal methods."""
    if method not in ORTHOGONAL:
        return [torch.optim.SGD(params.values(), lr=lr)]
    rest = [p for name, p in params.items() if name != "W"]
    return [flow(params["W"], method, orthogonal_lr, seed), torch.optim.SGD(rest, lr=lr)]


def flow(W: nn.Parameter, method: Method, lr: float, seed: int) -> FlowSGD:
    """The optimiser of an orthogonal method's transition.

    The stochastic one turns the planes of a matching that is drawn with h = |x| (Sec. 6.1).
    """
    if method == "stoch-ortRNN":
        return FlowSGD([("W", W)], lr, block_size=2, sampler=HRegular(2), seed=seed)
    return FlowSGD([("W", W)], lr, block_size="dense", seed=seed)


@torch.no_grad()
def after_step(
    params: dict[str, nn.Parameter], method: Method, generation: int, project_every: int
) -> None:
    """Bring the transition of `ortinit-vanRNN` back to O(d) after each `project_every` steps."""
    if method == "ortinit-vanRNN" and generation % project_every == 0:
        W = params["W"]
        W.copy_(project(W))
