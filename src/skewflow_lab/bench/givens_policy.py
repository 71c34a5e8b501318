"""`skewflow bench givens-policy`: the return of policies against their number of parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn
from torch.func import functional_call

from skewflow.es import EvolutionStrategy, InProcess, Moments
from skewflow.nn import GivensLinear, orthogonal_
from skewflow.optim import FlowSGD

from ..rl.policies import affine_params, recurrent_params
from ..rl.rollout import Rollout
from ..rl.tasks import TaskName, versions
from ..runs.environment import environment
from ..runs.files import RunError, recorded, write_json
from ..runs.seeds import spawn
from ..runs.threads import one_thread
from .command import show

SIGMA, LR, ORTHOGONAL_LR = 0.05, 0.1, 0.005
"""The settings of all policies; they were not searched."""
SCORES = 8
"""Episodes of a score."""

Transition = Callable[[dict[str, Tensor]], Tensor]
"""Removes the parameters of the transition from those of a policy, and returns its matrix."""


@dataclass
class Start:
    """The initial parameters of a policy, and the function from them to its transition."""

    params: dict[str, nn.Parameter]
    transition: Transition | None = None


@dataclass
class Composed(Rollout):
    """Episodes of a policy whose transition is composed from other parameters."""

    transition: Transition | None = None

    def episode(
        self,
        params: Any,
        seed: int,
        moments: Moments | None,
        on_step: Callable[[int, float], None] = lambda step, total: None,
    ) -> tuple[float, np.ndarray]:
        """An episode with the matrix as W."""
        if self.transition is not None:
            params = dict(params)
            params["W"] = self.transition(params)
        return super().episode(params, seed, moments, on_step)


def rotations(num_rounds: int) -> Callable[[int], tuple[dict[str, Tensor], Transition]]:
    """A `GivensLinear` of some rounds, or of d - 1 of them."""

    def make(d: int) -> tuple[dict[str, Tensor], Transition]:
        layer = GivensLinear(d, num_rounds or d - 1, bias=False)
        one = torch.eye(d)

        def transition(params: dict[str, Tensor]) -> Tensor:
            return functional_call(layer, {"angles": params.pop("angles")}, (one,)).mT

        return {"angles": layer.angles.detach()}, transition

    return make


def reflections(d: int) -> tuple[dict[str, Tensor], Transition]:
    """The parametrisation of torch by Householder vectors, of the entries that it reads."""
    base, (i, j) = orthogonal_(torch.empty(d, d)), torch.tril_indices(d, d, -1).unbind()

    def transition(params: dict[str, Tensor]) -> Tensor:
        A = torch.zeros(d, d)
        A[i, j] = params.pop("reflections")
        tau = 2 / (1 + A.square().sum(0))
        # The signs of the parametrisation's diagonal, which it starts at -1.
        return -base @ torch.linalg.householder_product(A, tau)

    return {"reflections": torch.zeros(len(i))}, transition


POLICIES = {
    "GivensLinear, 4 rounds": rotations(4),
    "GivensLinear, 16 rounds": rotations(16),
    "GivensLinear, d - 1 rounds": rotations(0),
    "torch, Householder": reflections,
    "OrthogonalLinear, FlowSGD": None,
    "Linear": None,
    "affine": None,
}
"""Policies with a recurrent state, by their transition; and one without a state."""


def givens_policy(
    task: TaskName = "HalfCheetah",
    hidden: int = 64,
    generations: int = 60,
    directions: int = 16,
    horizon: int = 200,
    seeds: int = 5,
    save: bool = False,
) -> None:
    """Train compact policies by evolution strategies: parameters against the return.

    One policy is affine. The others are recurrent, of one size, and differ in their transition. All
    use the same seeds, number and length of directions, and learning rates; `FlowSGD` steps the
    orthogonal matrix in blocks of 2. Needs the extra `rl`.

    Args:
        task: Control task.
        hidden: Entries of the recurrent state.
        generations: Steps of a strategy.
        directions: Directions of a generation; each costs two episodes.
        horizon: Longest episode.
        seeds: Number of runs of each policy.
        save: Write results/bench/givens_policy.json of the repository.
    """
    sizes = {"generations": generations, "directions": directions, "horizon": horizon}
    for name, value in {**sizes, "seeds": seeds, "hidden": hidden - 1}.items():
        if value < 1:
            raise RunError(
                "--hidden must be at least 2, and the other numbers at least 1: got "
                f"--{name} {value + (name == 'hidden')}."
            )
    out = recorded("givens_policy.json") if save else None
    rows = []
    for name in track(POLICIES, description="policies"):
        runs = [_train(name, task, hidden, seed, **sizes) for seed in range(seeds)]
        scores = [score for score, _ in runs]
        rows.append(
            {
                "policy": name,
                "parameters": runs[0][1]["all"],
                "of the transition": runs[0][1]["transition"],
                "mean return": fmean(scores),
                "least": min(scores),
                "largest": max(scores),
                "seeds": seeds,
            }
        )
        show(
            f"{name:28s} {rows[-1]['parameters']:6d} parameters, {fmean(scores):9.1f} "
            f"({min(scores):.1f} to {max(scores):.1f})"
        )
    if out:
        found = {"task": task, "hidden": hidden, **sizes, "rows": rows}
        write_json(out, {**found, "environment": {**environment("cpu"), **versions(mjx=False)}})


def _start(name: str, task: TaskName, hidden: int, seed: int) -> Start:
    """The parameters of a policy; equal parts of several policies have equal values."""
    simulation = Rollout(task).simulation()
    sizes = simulation.observation_size, len(simulation.low)
    simulation.close()
    if name == "affine":
        found = affine_params(*sizes)
        return Start({key: nn.Parameter(p) for key, p in found.items()})
    free = name == "Linear"
    generator = spawn(seed, "policy")
    found = recurrent_params(*sizes, hidden, orthogonal=not free, generator=generator)
    make, transition = POLICIES[name], None
    if make is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            own, transition = make(hidden)
        del found["W"]
        found |= own
    return Start({key: nn.Parameter(p) for key, p in found.items()}, transition)


def _train(
    name: str,
    task: TaskName,
    hidden: int,
    seed: int,
    *,
    generations: int,
    directions: int,
    horizon: int,
) -> tuple[float, dict[str, int]]:
    """The mean return of the last policy, and the numbers of its parameters."""
    start = _start(name, task, hidden, seed)
    params = start.params
    free = [p for key, p in params.items() if key != "W" or name == "Linear"]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(free, lr=LR)]
    if len(free) < len(params):
        optimizers.append(FlowSGD([params["W"]], ORTHOGONAL_LR, block_size=2, seed=seed))
    strategy = EvolutionStrategy(
        params, optimizers, num_directions=directions, sigma=SIGMA, maximize=True, seed=seed
    )
    rollout = Composed(task, horizon, transition=start.transition)
    with InProcess(rollout) as workers:
        for _ in range(generations):
            strategy.tell(workers.evaluate(strategy.ask()))
    last = strategy.ask()
    with one_thread():
        scores = [rollout.score(last.centre, k, last.moments).value for k in range(SCORES)]
    rollout.simulation().close()
    transition = sum(
        p.numel() for key, p in params.items() if key in ("W", "angles", "reflections")
    )
    sizes = {"all": sum(p.numel() for p in params.values()), "transition": transition}
    return fmean(scores), sizes
