"""The runs of Table 2: the sorting flow on many sequences at once, fused, in chunks (Sec. 9.3)."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from skewflow import _validate
from skewflow.errors import DtypeError, NonFiniteError, ShapeError
from skewflow.flows import sortedness
from skewflow.geometry import check_stiefel, orthogonality_error, require
from skewflow.tournaments import round_robin

DRAWS_AT_ONCE = 2**14
"""Number of steps whose matchings are drawn together; no result depends on it."""


@dataclass(frozen=True, eq=False)
class SortingScores:
    r"""The scores of Table 2, one number for each sequence.

    Args:
        epsilon: $\|XX^\top - I\|_F$; NaN where the run diverged.
        inv: `sortedness`; 0 where the run diverged, as in the paper.
        diverged: Whether the point is no longer finite.

    Example:
        >>> SortingScores(torch.zeros(1), torch.ones(1), torch.tensor([False])).inv
        tensor([1.])
    """

    epsilon: Float[Tensor, "b"]
    inv: Float[Tensor, "b"]
    diverged: Bool[Tensor, "b"]


class SortingRun:
    r"""The flow of `sorting_field` from several starts, all steps of all sequences in one loop.

    A run gives the same as `integrate` with that field, in float64 on the CPU, without Python in
    the loop:

    - "matchings" corresponds to ``sampler=RoundRobin(replacement=True)``: each step draws one of
      the d - 1 matchings of the circle method uniformly (the paper's stochastic integrator). It
      draws the same matchings as `integrate` from the same generator.
    - "exp" takes no sampler, and the exponential of the whole generator to rounding.
    - "taylor" takes a plain series of `terms` terms instead. It stops where a point overflows, as
      the paper's exact integrator does.

    A run advances in chunks of any length. The bits of the result depend neither on these lengths
    nor on saving and loading the state in between.

    Args:
        q: Sequences to sort (b, d).
        X0: Starting points (b, d, d).
        eta: Step size.
        method: "matchings", "exp" or "taylor".
        terms: Highest power of the series; for "taylor" only.
        generator: Source of randomness of the matchings, on the CPU; for "matchings" only.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> q = torch.rand(2, 5, generator=g, dtype=torch.float64)
        >>> from skewflow.geometry import haar
        >>> X0 = haar(5, batch=(2,), generator=g, dtype=torch.float64)
        >>> run = SortingRun(q, X0, 0.05, "matchings", generator=g)
        >>> run.advance(4000)
        >>> run.scores().inv
        tensor([1., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        q: Float[Tensor, "b d"],
        X0: Float[Tensor, "b d d"],
        eta: float,
        method: Literal["matchings", "exp", "taylor"],
        *,
        terms: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        _check(q, X0, eta)
        _validate.one_of(method, ("matchings", "exp", "taylor"), "method")
        if (terms is not None) != (method == "taylor"):
            raise ValueError(
                f'`terms` is for method="taylor", which needs it: got terms={terms} with '
                f"method={method!r}."
            )
        if terms is not None:
            _validate.count(terms, "terms")
        if (generator is not None) != (method == "matchings"):
            raise ValueError(
                '`generator` is for method="matchings", which needs it: got '
                f"{'one' if generator is not None else 'none'} with method={method!r}."
            )
        if generator is not None:
            _validate.generator(generator)
        self.q = q
        self.eta = float(eta)
        self.method = method
        self.step = 0
        self._terms = terms
        self._generator = generator
        self._Y = X0.mT.contiguous().clone().numpy()
        self._q = q.contiguous().numpy()
        self._n = np.arange(q.shape[1], 0, -1.0)  # `sorting_field` has the same
        self._diverged_at = np.full(len(q), -1)

    @property
    def points(self) -> Float[Tensor, "b d d"]:
        """A copy of the current points."""
        return torch.from_numpy(self._Y).mT.contiguous().clone()

    def advance(self, num_steps: int) -> None:
        """Take this many more steps."""
        _validate.count(num_steps, "num_steps")
        from . import sorting_cpu as cpu

        work = self._Y.size * num_steps
        if self.method == "matchings":
            self._advance_matchings(num_steps)
        elif self.method == "exp":
            cpu.run_exponential(work, self._Y, self._q, self._n, self.eta, num_steps)
        else:
            cpu.run_taylor(
                work,
                self._Y,
                self._q,
                self._n,
                self.eta,
                self.step,
                num_steps,
                self._terms,
                self._diverged_at,
            )
        self.step += num_steps

    def _advance_matchings(self, num_steps: int) -> None:
        from . import sorting_cpu as cpu

        b, d = self._q.shape
        family = round_robin(d)
        matchings = np.stack([T.edges().numpy() for T in family])
        angle = self.eta * len(family)
        for start in range(0, num_steps, DRAWS_AT_ONCE):
            shape = (min(DRAWS_AT_ONCE, num_steps - start), b)
            u = torch.rand(shape, generator=self._generator, dtype=torch.float64)
            members = (u * len(family)).to(torch.int64).numpy()
            work = self._Y.size * len(members)
            cpu.run_matchings(work, self._Y, self._q, self._n, angle, matchings, members)

    def scores(self) -> SortingScores:
        """The orthogonality and sortedness of the points; needs scipy."""
        X = self.points
        diverged = ~torch.isfinite(X).all(-1).all(-1)
        epsilon = torch.full((len(X),), torch.nan, dtype=torch.float64)
        inv = torch.zeros(len(X), dtype=torch.float64)
        good = ~diverged
        if good.any():
            epsilon[good] = orthogonality_error(X[good].mT)
            inv[good] = sortedness(X[good], self.q[good])
        return SortingScores(epsilon, inv, diverged)

    def state_dict(self) -> dict[str, Any]:
        """The points, the step, the step where each series diverged (or -1), and the generator."""
        return {
            "X": self.points,
            "step": self.step,
            "diverged_at": torch.from_numpy(self._diverged_at.copy()),
            "generator": None if self._generator is None else self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; the run must be made with the same arguments."""
        keys = {"X", "step", "diverged_at", "generator"}
        if not isinstance(state, dict) or set(state) != keys:
            raise ValueError(
                f"the state of a sorting run has the keys {sorted(keys)}: got "
                f"{sorted(state) if isinstance(state, dict) else state!r}."
            )
        if state["X"].shape != self._Y.shape or (state["generator"] is None) != (
            self._generator is None
        ):
            raise ValueError(
                "the state belongs to another run: its points have the shape "
                f"{tuple(state['X'].shape)}, this run's {self._Y.shape}, and only a run of "
                "matchings has a generator. Make the run with the arguments it was saved with."
            )
        self._Y = state["X"].mT.contiguous().clone().numpy()
        self._diverged_at = state["diverged_at"].clone().numpy()
        self.step = int(state["step"])
        if self._generator is not None:
            self._generator.set_state(state["generator"])


def _check(q: Tensor, X0: Tensor, eta: float) -> None:
    _validate.square(X0, "X0")
    for A, name in ((q, "q"), (X0, "X0")):
        if not isinstance(A, Tensor) or A.dtype != torch.float64 or A.device.type != "cpu":
            raise DtypeError(f"`{name}` must be a float64 tensor on the CPU: convert it first.")
    if X0.ndim != 3 or q.shape != X0.shape[:2]:
        raise ShapeError(
            f"`q` must be (b, d) and `X0` (b, d, d): got {tuple(q.shape)} and {tuple(X0.shape)}. "
            "Expand q, or X0, so that there is one for each sequence."
        )
    if not torch.isfinite(q).all() or not math.isfinite(eta):
        raise NonFiniteError(f"`q` and `eta` must be finite: got eta={eta}.")
    require(check_stiefel(X0))
