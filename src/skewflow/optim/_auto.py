"""What "auto" does with a weight: exact steps, or blocks of which size, by clock and gradients.

A step with blocks of s rows sees the part p = (s - 1) / (d - 1) of the planes, so it makes p of the
progress: what counts is p over the seconds of a step and of what lies between two. When every batch
has another gradient, momentum makes up for it: it keeps what the blocks of a step leave, for the
1 / (1 - mu) steps that it remembers. (With exact gradients it does not: what it gives an exact step
is speed along the valley, and blocks lose that.)
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from ._clock import Clock, seconds_of
from ._weights import Weight

LOOKS = (3, 64)
"""The steps before which it decides: once the first ones have compiled what there is to compile,
and again, in case those were not like the others."""
NOISY = 0.1
"""Cosine between two gradients in a row below which they are taken for those of batches."""
CANDIDATES = (64, 16, 2)
"""Block sizes that are tried; a larger one costs more than it adds (`bench step`)."""
MARGIN = 1.2
"""How much better than exact steps blocks must be, since clocks are noisy."""
MOST_OPERATIONS = {"cpu": 4e10, "cuda": 2e13}
"""Of an exact step: about half a second. Larger weights are stepped by blocks from the start."""
SAMPLE = 1024
"""Entries of a gradient that are compared."""

Watched = tuple[Weight, dict[str, Any], float]
"""A weight, its state and its momentum."""
Trial = Callable[[Weight, int], Callable[[], object]]
"""A step on a copy of a weight, with blocks of a size; of d rows for an exact one."""


@cache
def _table() -> dict[str, list[list[int]]]:
    table: dict[str, list[list[int]]] = json.loads(
        files(__package__).joinpath("auto_table.json").read_text()
    )
    return table


def auto_block_size(d: int, device: torch.device) -> int:
    """Without a clock: the largest measured block size whose step costs at most twice that of SGD.

    The table lists (largest d, block size) by kind of device; above its end the last entry holds.
    On CUDA they were measured on square matrices of 2048 rows and more, and below on the
    convolutions of PlainNet-110.
    """
    rows = _table()["cuda" if device.type == "cuda" else "cpu"]
    for largest, size in rows:
        if d <= largest:
            return size
    return rows[-1][1]


@dataclass(frozen=True)
class Choice:
    """What a weight gets, and why.

    Args:
        size: Rows of a block; d for exact steps.
        why: A sentence.
    """

    size: int
    why: str


def has_clock(group: dict[str, Any]) -> bool:
    """Whether a group decides by the clock, so that two runs may decide differently.

    Where the user wants the same bits, or several processes need them, the table decides; it also
    does for samplers, which draw blocks, for Cayley's exact step, which solves a system, and for
    FlowAdam, whose exact step cannot be captured in a CUDA graph.
    """
    if group["sampler"] != "uniform" or group["retraction"] != "exp" or "betas" in group:
        return False
    if torch.are_deterministic_algorithms_enabled():
        return False
    distributed = torch.distributed
    several = distributed.is_available() and distributed.is_initialized()
    return not (several and distributed.get_world_size() > 1)


def first_choice(weight: Weight, group: dict[str, Any]) -> Choice:
    """Before anything is measured.

    Exact steps where they cost little in absolute terms: they are never wilder than blocks, which
    at the same learning rate turn by larger angles.
    """
    d, device = weight.d, weight.p.device
    size = auto_block_size(d, device)
    if not has_clock(group):
        return Choice(min(size, d), "by the table of sizes that cost at most twice SGD")
    operations, most = _operations(weight), MOST_OPERATIONS.get(device.type, 4e10)
    if operations > most:
        why = f"an exact step would take {operations:.0e} operations, and {most:.0e} are the most"
        return Choice(min(size, d), why)
    return Choice(d, f"nothing is measured before step {LOOKS[0]}")


def choose(
    d: int, exact: float, between: float, memory: float, cost: Callable[[int], float]
) -> Choice:
    """Decide for one weight.

    Args:
        d: Its rows.
        exact: Seconds of an exact step, as the clock has seen it.
        between: Seconds between two steps; the weight's part of them.
        memory: Steps that the momentum makes up for: 1 with exact gradients.
        cost: Measures the seconds of a step with blocks of a size, d for an exact one.

    Example:
        >>> choose(100, exact=2.0, between=1.0, memory=1.0, cost=lambda s: 0.02 * s).size
        100
        >>> choose(100, exact=2.0, between=1.0, memory=10.0, cost=lambda s: 0.02 * s).size
        16
    """
    parts = {s: min(1.0, memory * (s - 1) / (d - 1)) for s in CANDIDATES if s < d}
    told = f"an exact step takes {_ms(exact)}, and {_ms(between)} lie between two"
    # Those that would lose if they cost nothing are not tried.
    worth = [s for s in parts if parts[s] * (exact + between) > MARGIN * between]
    if not worth:
        return Choice(d, f"{told}: blocks could not make up for what they leave out")
    gain = {s: parts[s] / (cost(s) + between) for s in worth}
    best = max(gain, key=lambda s: gain[s])
    exact = cost(d)  # again, beside them
    told = f"an exact step takes {_ms(exact)}, blocks of {best} rows {_ms(cost(best))}"
    told = f"{told}, and {_ms(between)} lie between two"
    if gain[best] < MARGIN / (exact + between):
        return Choice(d, f"{told}: exact steps make more progress a second")
    return Choice(best, f"{told}: blocks make more progress a second")


class Auto:
    """Watches the first steps of an optimiser, and decides for each of its weights."""

    def __init__(self) -> None:
        self.choices: dict[Tensor, Choice] = {}
        self._steps = 0
        self._clock: Clock | None = None
        self._samples: dict[Tensor, list[Tensor]] = {}
        self._exact: dict[Tensor, float] = {}
        self._kept: set[Tensor] = set()

    def size(self, weight: Weight, group: dict[str, Any], state: dict[str, Any]) -> int:
        """Rows of a block now; d for exact steps."""
        if weight.p not in self.choices:
            self.choices[weight.p] = first_choice(weight, group)
            if "auto_size" in state:
                self._kept.add(weight.p)
                self.choices[weight.p] = Choice(state["auto_size"], "as it was saved")
        return self.choices[weight.p].size

    def tick(self) -> bool:
        """Before every step; whether this one is watched."""
        self._steps += 1
        return any(0 <= look - self._steps <= 2 for look in LOOKS)

    def begin(self, weights: Sequence[Watched], trial: Trial) -> bool:
        """Before a step that is watched; whether a choice has changed.

        Args:
            weights: Those with a gradient that the clock decides for.
            trial: Makes steps to measure.
        """
        weights = [watched for watched in weights if watched[0].p not in self._kept]
        if not weights:
            return False
        if self._clock is None:
            self._clock = Clock(weights[0][0].p.device)
            self._samples.clear()
        self._clock.begin()
        for weight, _, _ in weights:
            assert weight.p.grad is not None
            flat = weight.p.grad.detach().reshape(-1)
            some = flat[:: max(1, len(flat) // SAMPLE)].double()
            self._samples[weight.p] = [*self._samples.get(weight.p, [])[-1:], some]
        return self._steps in LOOKS and self._decide(weights, trial)

    def end(self) -> None:
        """After a step."""
        if self._clock is not None:
            self._clock.end()

    def _decide(self, weights: Sequence[Watched], trial: Trial) -> bool:
        assert self._clock is not None
        steps, between = self._clock.step(), self._clock.between()
        if steps == math.inf:  # none has ended
            return False
        exact = [w for w, _, _ in weights if self.choices[w.p].size >= w.d]
        total = sum(_operations(w) for w in exact)
        for weight in exact:
            self._exact[weight.p] = steps * _operations(weight) / total
        everything = sum(_operations(w) for w, _, _ in weights)
        costs: dict[Any, float] = {}
        changed = False
        for weight, state, momentum in weights:
            if weight.p not in self._exact:  # it was too large for an exact step
                continue

            def cost(s: int, weight: Weight = weight) -> float:
                kind = (s, weight.view.matrices, weight.p.stride(), weight.p.dtype, weight.p.device)
                if kind not in costs:
                    costs[kind] = seconds_of(trial(weight, s), weight.p.device)
                return costs[kind]

            part = between * _operations(weight) / everything
            noisy = _cosine(self._samples[weight.p]) < NOISY
            memory = 1 / max(1e-3, 1 - momentum) if noisy else 1.0
            choice = choose(weight.d, self._exact[weight.p], part, memory, cost)
            changed |= choice.size != self.choices[weight.p].size
            self.choices[weight.p] = choice
            state["auto_size"] = choice.size
        self._clock = None
        return changed


def told(weight: Weight, group: dict[str, Any], auto: Auto, rank: int | None) -> str:
    """A line about one weight.

    Args:
        weight: The weight.
        group: Its options.
        auto: What has been decided.
        rank: Of the factors of its last step, or None.
    """
    n, d, k = weight.view.matrices
    shape = f"{d} x {k}" if n == 1 else f"{n} x {d} x {k}"
    line = f"{weight.name} ({shape} on {weight.p.device}): "
    if rank is not None:
        return f"{line}factored steps. Its gradient came in factors of rank {rank}."
    size, why = group["block_size"], "so it was asked for"
    if size == "auto":
        choice = auto.choices.get(weight.p) or first_choice(weight, group)
        size, why = choice.size, choice.why
    blocks = isinstance(size, int) and size < d
    return f"{line}{f'blocks of {size} rows' if blocks else 'exact steps'}, {why}."


def _operations(weight: Weight) -> float:
    """Of the four products of an exact step."""
    n, d, k = weight.view.matrices
    return 8.0 * n * d * k * k


def _cosine(samples: Sequence[Tensor]) -> float:
    if len(samples) < 2 or samples[0].shape != samples[1].shape:
        return 1.0
    a, b = samples
    value = float((a @ b) / (a.norm() * b.norm()).clamp(min=1e-300))
    return value if math.isfinite(value) else 0.0


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms"
