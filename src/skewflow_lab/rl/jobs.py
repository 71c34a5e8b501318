"""One training run of Sec. 6.1, and the strategy that does it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import nn

from skewflow.es import EvolutionStrategy, Outcome
from skewflow.es.generation import seeds_for

from ..measure import balance
from ..models.methods import relative_error
from ..runs.seeds import spawn
from .methods import ORTHOGONAL, Method, Settings, after_step, optimizers, start
from .tasks import TaskName

if TYPE_CHECKING:
    from .config import RLConfig

Strategy = TypeVar("Strategy", bound=EvolutionStrategy)

SCORES = 2**31
"""The stream of the seeds of last scores, which no direction has."""


@dataclass(frozen=True)
class Job:
    """A task, a method, its size and a seed; `hidden` and `project_every` are 0 where unused."""

    task: TaskName
    method: Method
    hidden: int
    project_every: int
    seed: int

    @property
    def label(self) -> str:
        """The method, and how often it projects."""
        return f"{self.method} p={self.project_every}" if self.project_every else self.method

    @property
    def cell(self) -> str:
        """A name for files."""
        size = f",h={self.hidden}" if self.hidden else ""
        return f"{self.task},{self.label.replace(' ', ',')}{size},seed={self.seed}"


class Trainee(Generic[Strategy]):
    """The parameters of a job, the strategy that moves them, and what was measured on the way.

    Args:
        config: The settings of all jobs.
        job: This one.
        settings: Step sizes, momentum and sigma.
        kind: Of strategy.
        device: Where the parameters are.
    """

    def __init__(
        self,
        config: "RLConfig",
        job: Job,
        settings: Settings,
        kind: type[Strategy],
        device: str = "cpu",
    ) -> None:
        self.job = job
        begin, self.fixed = start(
            job.task, job.method, job.hidden, spawn(job.seed, "policy", job.hidden)
        )
        self.params = {name: nn.Parameter(p.detach().to(device)) for name, p in begin.items()}
        self.strategy = kind(
            self.params,
            optimizers(
                self.params,
                job.method,
                settings,
                num_directions=config.num_directions,
                num_draws=config.num_draws,
                seed=job.seed,
            ),
            num_directions=config.num_directions,
            sigma=settings.sigma,
            maximize=True,
            num_evaluations=config.num_evaluations,
            num_scores=config.num_scores,
            score_every=config.score_every,
            common_seeds=config.common_starts,
            seed=job.seed,
        )
        self.curve: list[tuple[int, int, float]] = []  # generation, steps so far, score
        self._drift = self._moved = 0.0
        self._balance: list[dict[str, Any]] = []
        self._rho_every = config.rho_every
        if job.method == "stoch-ortRNN" and config.rho_every:
            self.strategy.optimizers[0].register_step_pre_hook(self._measure)

    def _measure(self, *_: object) -> None:
        """The balance of Omega before a step (Sec. 9.2)."""
        W, step = self.params["W"], self.strategy.generation
        if step % self._rho_every == 0 and W.grad is not None and W.grad.any():
            values = balance.measure(W.detach(), W.grad, balance.sizes(self.job.hidden))
            self._balance.append({"step": step, "rho": values})

    def tell(self, outcomes: Sequence[Outcome], **measured: int) -> dict[str, Any]:
        """Take one step, and project if it is time to; the generation in numbers."""
        job, W = self.job, self.params.get("W")
        before = torch.empty(0) if W is None else W.detach().clone()
        steps = self.strategy.steps
        record = self.strategy.tell(outcomes)
        after_step(self.params, job.method, self.strategy.generation, job.project_every)
        if W is not None:
            self._moved += float((W.detach() - before).norm() / W.detach().norm())
        if job.method in (*ORTHOGONAL, "ortinit-vanRNN"):
            self._drift = max(self._drift, relative_error(self.params["W"]))
        if record.score is not None:
            self.curve.append((record.generation, steps, record.score))
        return {**asdict(record), **measured}

    def state_dict(self) -> dict[str, Any]:
        """What a stopped run goes on from."""
        return {
            "strategy": self.strategy.state_dict(),
            "curve": self.curve,
            "drift": self._drift,
            "moved": self._moved,
            "balance": self._balance,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.strategy.load_state_dict(state["strategy"])
        self.curve, self._balance = [tuple(p) for p in state["curve"]], state["balance"]
        self._drift, self._moved = state["drift"], state["moved"]

    def policy(self) -> dict[str, Any]:
        """The last centre, what it normalises by, and the seed of its first score."""
        last = self.strategy.ask()
        moments = None if last.moments is None else last.moments.state_dict()
        (first, *_) = self.score_seeds(1)
        return {"params": {**self.fixed, **last.centre}, "moments": moments, "seed": first}

    def score_seeds(self, count: int) -> tuple[int, ...]:
        """Seeds of episodes that score the last centre, in which nothing was trained."""
        return seeds_for(self.job.seed, self.strategy.generation, SCORES, count)

    def result(self, returns: Sequence[float], gait: Mapping[str, float]) -> dict[str, Any]:
        """What is kept of the job, with the returns and the gait of its last centre."""
        generations = self.strategy.generation
        orthogonal = self.job.method in (*ORTHOGONAL, "ortinit-vanRNN")
        measured = {"rho": self._balance} if self._balance else {}
        return {
            "score": fmean(returns),
            "steps": self.strategy.steps,
            "drift": self._drift if orthogonal else None,
            "moved": self._moved / generations if "W" in self.params else None,
            "curve": [list(point) for point in self.curve],
            "gait": dict(gait),
            **measured,
        }
