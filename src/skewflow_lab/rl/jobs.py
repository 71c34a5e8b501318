"""One training run of Sec. 6.1, and the strategy that does it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import nn

from skewflow.es import EvolutionStrategy, Outcome

from ..measure import balance
from ..models.methods import relative_error
from ..runs.seeds import spawn
from .methods import FREE, Method, after_step, optimizers, start
from .tasks import TaskName

if TYPE_CHECKING:
    from .config import RLConfig

Strategy = TypeVar("Strategy", bound=EvolutionStrategy)


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
        kind: Of strategy.
        device: Where the parameters are.
    """

    def __init__(
        self,
        config: "RLConfig",
        job: Job,
        kind: type[Strategy],
        device: str = "cpu",
    ) -> None:
        self.job = job
        begin = start(job.task, job.method, job.hidden, spawn(job.seed, "policy", job.hidden))
        self.params = {name: nn.Parameter(p.detach().to(device)) for name, p in begin.items()}
        self.strategy = kind(
            self.params,
            optimizers(
                self.params,
                job.method,
                lr=config.lr,
                orthogonal_lr=config.orthogonal_lr,
                seed=job.seed,
            ),
            num_directions=config.num_directions,
            sigma=config.sigma,
            maximize=True,
            num_evaluations=config.num_evaluations,
            num_scores=config.num_scores,
            common_seeds=config.common_starts,
            seed=job.seed,
        )
        self._curve: list[str] = []  # rows as JSON, since `state_dict` is called so often
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
        job, record = self.job, self.strategy.tell(outcomes)
        after_step(self.params, job.method, self.strategy.generation, job.project_every)
        drift = None if job.method in FREE else relative_error(self.params["W"])
        row = {**asdict(record), "drift": drift, **measured}
        self._curve.append(json.dumps(row))
        return row

    def state_dict(self) -> dict[str, Any]:
        """What a stopped run goes on from."""
        # As one string: to pickle a thousand rows takes longer than all else in a generation.
        kept = {"curve": "\n".join(self._curve), "balance": self._balance}
        return {"strategy": self.strategy.state_dict(), **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.strategy.load_state_dict(state["strategy"])
        self._curve, self._balance = state["curve"].splitlines(), state["balance"]

    def policy(self) -> dict[str, Any]:
        """The last centre, what it normalises by, and the seed of its first score."""
        last = self.strategy.ask()
        moments = None if last.moments is None else last.moments.state_dict()
        (first, *_) = (task.seeds[0] for task in last.tasks if task.sign == 0)
        return {"params": last.centre, "moments": moments, "seed": first}

    def result(self, ends: Sequence[Outcome]) -> dict[str, Any]:
        """What is kept of the job, with the scores of its last centre."""
        rows = [json.loads(line) for line in self._curve]
        drifts = [row["drift"] for row in rows if row["drift"] is not None]
        measured = {"rho": self._balance} if self._balance else {}
        return {
            "score": fmean(end.value for end in ends),
            "steps": rows[-1]["steps"],
            "drift": max(drifts, default=None),
            "curve": [row["score"] for row in rows],
            **measured,
        }
