"""The ways of training that Sec. 6.1 compares, and controls beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from skewflow.geometry import project
from skewflow.optim import FlowSGD
from skewflow.samplers import HRegular

from .policies import affine_params, recurrent_params
from .tasks import make

Method = Literal[
    "stoch-ortRNN",
    "stoch-many-ortRNN",
    "stoch-uniform-ortRNN",
    "exact-ortRNN",
    "vanRNN",
    "vanRNN-radius-1",
    "ortinit-vanRNN",
    "frozen-ortRNN",
    "frozen-0.6-ortRNN",
    "affine",
]
"""The paper's names, and ours. stoch-many draws many matchings for a gradient, stoch-uniform one
with the uniform law. vanRNN-radius-1 begins with spectral radius 1, as orthogonal transitions do.
The frozen ones do not train the transition, which is orthogonal or 0.6 times that. An affine policy
has no state."""

ORTHOGONAL = ("stoch-ortRNN", "stoch-many-ortRNN", "stoch-uniform-ortRNN", "exact-ortRNN")
"""Methods that keep the transition on O(d)."""
FROZEN = ("frozen-ortRNN", "frozen-0.6-ortRNN")
"""Methods that do not train the transition."""
FREE = ("vanRNN", "vanRNN-radius-1")
"""Methods whose transition is never orthogonal. That of ortinit-vanRNN is so after each projection.
"""


@dataclass(frozen=True)
class Settings:
    """What is searched for each method.

    Args:
        lr: Step size of all trained parameters but the transition, for gradients normalised as in
            ARS.
        rate: The part |dW| / |W| by which a generation of pure noise moves the transition.
        momentum: Of all trained parameters.
        sigma: Standard deviation of a perturbation, for each entry.
    """

    lr: float
    rate: float
    momentum: float
    sigma: float


def start(
    task: str, method: Method, hidden: int, generator: torch.Generator
) -> tuple[dict[str, nn.Parameter], dict[str, Tensor]]:
    """The parameters that a method trains and those that it keeps, fitting the task's sizes."""
    environment = make(task)
    sizes = environment.observation_size, len(environment.low)
    environment.close()
    if method == "affine":
        params = affine_params(*sizes)
    else:
        free = method in FREE
        params = recurrent_params(*sizes, hidden, orthogonal=not free, generator=generator)
    if method == "vanRNN-radius-1":
        params["W"] /= torch.linalg.eigvals(params["W"].double()).abs().max()
    if method == "frozen-0.6-ortRNN":
        params["W"] *= 0.6
    fixed = {"W": params.pop("W")} if method in FROZEN else {}
    return {name: nn.Parameter(p) for name, p in params.items()}, fixed


def optimizers(
    params: dict[str, nn.Parameter],
    method: Method,
    settings: Settings,
    *,
    num_directions: int,
    num_draws: int,
    seed: int,
) -> Sequence[torch.optim.Optimizer]:
    """SGD for all parameters, but FlowSGD for the transition of the orthogonal methods.

    With momentum the step sizes are smaller, so that noise moves the parameters as far as without.
    """
    mu = settings.momentum
    smaller = math.sqrt(1 - mu**2)
    groups = [{"params": [p for name, p in params.items() if name != "W"]}]
    if "W" not in params:
        return [torch.optim.SGD(groups, lr=settings.lr * smaller, momentum=mu)]
    W = params["W"]
    moved = moved_by_noise(W, method, num_directions=num_directions, num_draws=num_draws)
    lr = settings.rate * smaller / moved
    if method in ORTHOGONAL:
        flow = make_flow(W, method, lr, momentum=mu, num_draws=num_draws, seed=seed)
        return [flow, torch.optim.SGD(groups, lr=settings.lr * smaller, momentum=mu)]
    groups.append({"params": [W], "lr": lr})  # type: ignore[dict-item] # torch's groups mix types
    return [torch.optim.SGD(groups, lr=settings.lr * smaller, momentum=mu)]


def moved_by_noise(W: Tensor, method: Method, *, num_directions: int, num_draws: int) -> float:
    r"""The part |dW| / |W| by which a generation moves the transition at lr = 1, for pure noise.

    If returns do not depend on the policy, a gradient that is normalised as in ARS has independent
    entries of variance 2 / n, and the entries of $\Omega$ twice that. An exact step moves by
    $|\Omega|$, one matching by (d - 1) times the part of $\Omega$ in its d / 2 planes, and m
    matchings at 1 / m of the step by $1 / \sqrt m$ of that.
    """
    d, deviation = len(W), math.sqrt(2 / num_directions)
    if method not in ORTHOGONAL:
        return deviation * d / float(W.detach().norm())
    if method == "exact-ortRNN":
        return deviation * math.sqrt(2 * (d - 1))
    draws = num_draws if method == "stoch-many-ortRNN" else 1
    return deviation * math.sqrt(2 / draws) * (d - 1)


def make_flow(
    W: nn.Parameter,
    method: Method,
    lr: float,
    *,
    momentum: float = 0.0,
    num_draws: int = 1,
    seed: int = 0,
) -> FlowSGD:
    """The optimiser of an orthogonal method's transition.

    stoch-ortRNN turns the planes of one matching that is drawn with h = |x| (Sec. 6.1).
    """
    named = [("W", W)]
    if method == "exact-ortRNN":
        return FlowSGD(named, lr, momentum, block_size="dense", seed=seed)
    if method == "stoch-ortRNN":
        return FlowSGD(named, lr, momentum, block_size=2, sampler=HRegular(2), seed=seed)
    if method == "stoch-uniform-ortRNN":
        return FlowSGD(named, lr, momentum, block_size=2, sampler="uniform", seed=seed)
    return FlowSGD(named, lr, momentum, block_size=2, num_draws=num_draws, seed=seed)


@torch.no_grad()
def after_step(
    params: dict[str, nn.Parameter], method: Method, generation: int, project_every: int
) -> None:
    """Bring the transition of `ortinit-vanRNN` back to O(d) after each `project_every` steps."""
    if method == "ortinit-vanRNN" and generation % project_every == 0:
        W = params["W"]
        W.copy_(project(W))
