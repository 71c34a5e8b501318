"""Ask and tell: ask for perturbations, tell their values, step torch's optimisers (Sec. 6.1)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .. import _validate
from ..errors import (
    CheckpointError,
    NonFiniteGradientError,
    NonFiniteReturnError,
    NotOnManifoldError,
    ShapeError,
)
from ..geometry.checks import check_stiefel
from ..geometry.matrices import MatrixView
from .generation import Generation, Task, seeds_for
from .moments import Moments
from .objective import Outcome, is_finite
from .shaping import SHAPINGS, check_top, direction_weights


@dataclass(frozen=True)
class Record:
    """Statistics of one generation, none of which depends on a clock (not in the paper).

    Args:
        generation: Number of the generation, from 0.
        mean: Mean value of the perturbed points.
        deviation: Standard deviation of these values.
        best: The best of these values.
        score: Mean value of the centre *before* this generation's step; None if not evaluated.
        steps: Total cost of all evaluations so far, without those of scores.
    """

    generation: int
    mean: float
    deviation: float
    best: float
    score: float | None
    steps: int


class EvolutionStrategy:
    r"""Black-box gradients from antithetic Gaussian directions, for any optimisers (Sec. 6.1).

    A generation has n directions $\delta$, each evaluated on both sides of the centre. Their
    weighted sum (`direction_weights`) is written to `.grad` with the sign for descent, and the
    optimisers step. Give orthogonal parameters to `FlowSGD` or `FlowAdam`, with any sampler; the
    paper's settings are ``sampler=HRegular(2)``. By default they are perturbed in the
    ambient space like all parameters, so a perturbed point is *not* orthogonal. Those named in
    `geodesics` are perturbed along geodesics: the direction is projected to the tangent space,
    which does not change the generator $\Omega$ of the step.

    Args:
        params: A module, or parameters by name: the same tensors that the optimisers hold.
        optimizers: The optimisers; together they hold each of these parameters once.
        num_directions: n; a generation has 2n points.
        sigma: Standard deviation of a perturbation, per entry.
        shaping: "ars", "ranks" or "plain", see `direction_weights`.
        top: Number of directions to use, the best ones; all when omitted.
        maximize: Larger values are better.
        geodesics: Names of orthogonal parameters to perturb along geodesics.
        num_evaluations: Evaluations of each point, with different seeds; their mean is its value.
        num_scores: Evaluations of the centre that are reported.
        score_every: Generations between two such reports, the first with generation 0.
        common_seeds: Evaluate all points of a generation with the same seeds (common random
            numbers); otherwise only the two sides of a direction have the same seeds.
        seed: Seed of the directions and of the evaluations' seeds.

    Example:
        >>> x = nn.Parameter(torch.tensor([3.0, -2.0]))
        >>> adam = torch.optim.Adam([x], lr=0.1)
        >>> strategy = EvolutionStrategy({"x": x}, [adam], num_directions=8, sigma=0.1)
        >>> for _ in range(60):
        ...     generation = strategy.ask()
        ...     points = [generation.params(task) for task in generation.tasks]
        ...     record = strategy.tell([float(p["x"].square().sum()) for p in points])
        >>> bool(x.detach().norm() < 0.2)
        True
    """

    def __init__(
        self,
        params: nn.Module | Mapping[str, Tensor],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        num_directions: int,
        sigma: float,
        shaping: Literal["ars", "ranks", "plain"] = "ars",
        top: int | None = None,
        maximize: bool = False,
        geodesics: Iterable[str] = (),
        num_evaluations: int = 1,
        num_scores: int = 0,
        score_every: int = 1,
        common_seeds: bool = True,
        seed: int = 0,
    ) -> None:
        named = params.named_parameters() if isinstance(params, nn.Module) else params.items()
        self.params: dict[str, Tensor] = dict(named)
        self.optimizers = list(optimizers)
        _validate.count(num_directions, "num_directions")
        _validate.count(num_evaluations, "num_evaluations")
        _validate.count(score_every, "score_every")
        _validate.one_of(shaping, tuple(SHAPINGS), "shaping")
        check_top(top, num_directions)
        if not 0 < sigma < float("inf"):
            raise ValueError(f"`sigma` must be above 0 and finite: got {sigma}. Try 0.05.")
        for name, value in (("seed", seed), ("num_scores", num_scores)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"`{name}` must be a whole number of at least 0: got {value!r}.")
        self.num_directions, self.sigma, self.shaping, self.top = (
            num_directions,
            sigma,
            shaping,
            top,
        )
        self.maximize, self.geodesics = maximize, frozenset(geodesics)
        self.num_evaluations, self.num_scores = num_evaluations, num_scores
        self.score_every = score_every
        self.common_seeds, self.seed = common_seeds, seed
        self.generation = self.steps = 0
        self.moments: Moments | None = None
        self._asked: Generation | None = None
        self._check_params()

    def _check_params(self) -> None:
        if not self.params:
            raise ValueError("`params` must hold at least one parameter: got none.")
        for name, p in self.params.items():
            _validate.floating(p, name)
        unknown = sorted(self.geodesics - set(self.params))
        if unknown:
            raise ValueError(
                f"`geodesics` must name parameters: got {', '.join(unknown)}; the parameters are "
                f"{', '.join(self.params)}."
            )
        for name in self.geodesics:
            point = self.params[name].detach()
            check = check_stiefel(MatrixView.of(point, name)(point))
            if not check:
                raise NotOnManifoldError(f"{name} has no geodesics: {check.reason}")
        held = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        for name, p in self.params.items():
            times = sum(p is q for q in held)
            if times != 1:
                raise ValueError(
                    f"each parameter must belong to one of the optimisers: {name} belongs to "
                    f"{times}. Give each to one optimiser, as the tensor itself and not a copy."
                )
        if len(held) != len(self.params):
            raise ValueError(
                f"the optimisers must hold the parameters and nothing else: they hold {len(held)}, "
                f"and there are {len(self.params)}. Pass the others in `params` too."
            )

    def ask(self) -> Generation:
        """The next generation; it stays the same until `tell`."""
        if self._asked is None:
            self._asked = Generation(
                self.generation,
                self.seed,
                self.sigma,
                {name: p.detach().clone() for name, p in self.params.items()},
                self.geodesics,
                self.moments,
                tuple(self.tasks(self.generation)),
            )
        return self._asked

    def evaluation_seeds(self, generation: int) -> list[tuple[int, ...]]:
        """The seeds of each direction of a generation, past or future."""
        n, k = self.num_directions, self.num_evaluations
        if self.common_seeds:
            return [seeds_for(self.seed, generation, 0, k)] * n
        drawn = seeds_for(self.seed, generation, 0, n * k)
        return [drawn[i : i + k] for i in range(0, n * k, k)]

    def tasks(self, generation: int) -> list[Task]:
        """The tasks of a generation, past or future."""
        n, found = self.num_directions, []
        for i, seeds in enumerate(self.evaluation_seeds(generation)):
            found += [Task(2 * i, i, 1, seeds), Task(2 * i + 1, i, -1, seeds)]
        # Scores have the same seeds in all generations, so that a learning curve compares centres.
        if generation % self.score_every == 0:
            scored = seeds_for(self.seed, 0, n, self.num_scores)
            found += [Task(2 * n + k, 0, 0, (seed,)) for k, seed in enumerate(scored)]
        return found

    def tell(self, outcomes: Sequence[Outcome | float]) -> Record:
        """Take one step from the values of the generation's tasks, in the order of the tasks.

        Raises:
            NonFiniteReturnError: If a value is NaN, infinite or no number, or an observation is
                not finite; nothing is changed then.
        """
        generation = self.ask()
        found = [o if isinstance(o, Outcome) else Outcome(o) for o in outcomes]
        if len(found) != len(generation.tasks):
            raise ShapeError(
                f"`tell` needs one value for each of the {len(generation.tasks)} tasks: got "
                f"{len(found)}. Evaluate `ask().tasks` in their order."
            )
        for task, outcome in zip(generation.tasks, found, strict=True):
            if not is_finite(outcome.value):
                raise NonFiniteReturnError(
                    f"values must be finite numbers: got {outcome.value!r} "
                    f"{generation.name(task)}. Nothing was changed. Give a failed evaluation a "
                    "large but finite loss."
                )
            if outcome.observed is not None and not outcome.observed.is_finite():
                raise NonFiniteReturnError(
                    "observations must be finite numbers, small enough to be squared: got others "
                    f"{generation.name(task)}. Nothing was changed. Omit them from `observed`."
                )
        pairs, scores = found[: 2 * self.num_directions], found[2 * self.num_directions :]
        values = np.array([o.value for o in pairs], dtype=np.float64)
        moments = self.moments
        for o in pairs:
            if o.observed is not None:
                moments = o.observed if moments is None else moments.merge(o.observed)
        returns = values.reshape(-1, 2) * (1.0 if self.maximize else -1.0)
        weights = direction_weights(returns, self.sigma, self.shaping, self.top)
        self._step(generation, weights)
        self.moments = moments
        self.steps += sum(o.steps for o in pairs)
        self.generation += 1
        self._asked = None
        return Record(
            generation.number,
            float(values.mean()),
            float(values.std()),
            float(values.max() if self.maximize else values.min()),
            float(np.mean([o.value for o in scores])) if scores else None,
            self.steps,
        )

    def gradients(self, generation: Generation, weights: np.ndarray) -> dict[str, Tensor]:
        """The gradients for the optimisers: minus the weighted sum of the directions, in order.

        A subclass whose directions are drawn on another device overrides this sum.
        """
        total = {name: torch.zeros_like(p) for name, p in generation.centre.items()}
        for number, weight in enumerate(weights.tolist()):
            if weight:
                for name, delta in generation.direction(number).items():
                    total[name] -= weight * delta
        return total

    @torch.no_grad()
    def _step(self, generation: Generation, weights: np.ndarray) -> None:
        gradients = self.gradients(generation, weights)
        for name, gradient in gradients.items():
            if not torch.isfinite(gradient).all():
                raise NonFiniteGradientError(
                    f"the gradient of {name} must be finite: the returns of generation "
                    f"{generation.number} are too large for {gradient.dtype}. Nothing was changed. "
                    'Scale them down, or use shaping="ars" or "ranks".'
                )
        for name, p in self.params.items():
            p.grad = gradients[name]
        try:
            for optimizer in self.optimizers:
                optimizer.step()
        finally:
            for p in self.params.values():
                p.grad = None

    def settings(self) -> dict[str, Any]:
        """The arguments on which the result of a run depends, without the optimisers."""
        names = "num_directions sigma shaping top maximize num_evaluations num_scores score_every"
        kept = {name: getattr(self, name) for name in (*names.split(), "common_seeds", "seed")}
        return {**kept, "geodesics": sorted(self.geodesics)}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs for the same bits, as plain data."""
        return {
            "settings": self.settings(),
            "generation": self.generation,
            "steps": self.steps,
            "moments": None if self.moments is None else self.moments.state_dict(),
            "params": {name: p.detach().clone() for name, p in self.params.items()},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`.

        Raises:
            CheckpointError: If the state belongs to other settings, parameters or optimisers;
                nothing is changed then.
        """
        self._check_state(state)
        kept = state["moments"]
        moments = None if kept is None else Moments.from_state_dict(kept)
        self._load_optimizers(state["optimizers"])
        for name, p in self.params.items():
            p.copy_(state["params"][name])
        self.generation, self.steps = state["generation"], state["steps"]
        self.moments = moments
        self._asked = None

    def _load_optimizers(self, states: Sequence[dict[str, Any]]) -> None:
        """Load all states or none; only an optimiser itself can tell whether a state fits it."""
        before = [optimizer.state_dict() for optimizer in self.optimizers]
        try:
            for optimizer, saved in zip(self.optimizers, states, strict=True):
                optimizer.load_state_dict(saved)
        except Exception as error:  # each class of optimiser has its own errors
            for optimizer, own in zip(self.optimizers, before, strict=True):
                optimizer.load_state_dict(own)
            raise CheckpointError(
                "a saved state fits its own optimisers only: one of these refuses it "
                f"({type(error).__name__}: {error}). Nothing was changed. Make them as they were "
                "when it was saved, groups included, or start a new run."
            ) from error

    def _check_state(self, state: dict[str, Any]) -> None:
        missing = {"settings", "generation", "steps", "moments", "params", "optimizers"} - set(
            state
        )
        if missing:
            raise CheckpointError(
                "`state` must be what `EvolutionStrategy.state_dict` returned: it lacks "
                f"{', '.join(sorted(missing))}. Take it from a checkpoint of this library."
            )
        check_settings(self.settings(), state["settings"])
        here, there = (
            {name: f"{tuple(p.shape)} {p.dtype}" for name, p in params.items()}
            for params in (self.params, state["params"])
        )
        if here != there or len(state["optimizers"]) != len(self.optimizers):
            raise CheckpointError(
                f"a saved state fits its own parameters only: it holds {there} in "
                f"{len(state['optimizers'])} optimisers, and here are {here} in "
                f"{len(self.optimizers)}. Make them as they were when it was saved."
            )


def check_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise if a state was saved with other settings."""
    differ = [
        f"{name} ({theirs.get(name)!r} there, {ours.get(name)!r} here)"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]
    if differ:
        raise CheckpointError(
            "a run can be resumed with its own settings only: they differ in "
            f"{', '.join(differ)}. Use the saved ones, or start a new run."
        )
