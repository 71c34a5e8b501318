"""Episodes of many policies at once: physics, policies and returns in one compiled loop."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from skewflow.es import Moments

from . import mjx_fewer
from .mjx_fewer import Episodes, Given, Group
from .mjx_noise import perturbed
from .mjx_starts import Seeds, Starts, make_starts
from .mjx_strategy import MjxGeneration
from .mjx_tasks import Simulation, State
from .policies import CLIP

CHUNK = 25
"""Steps between two checks whether any episode still runs."""

FLOOR = 1e-6
"""A deviation below this part of the mean is that of float32: the entry is constant."""

PRECISION = "highest"
"""Precision of matrix products. The default on a GPU is TF32: ten bits are too few for the physics.
"""

ROUNDING = 1e-5
"""A sum of squares below this part of what it is the difference of is float32's rounding."""


@dataclass(frozen=True)
class Returned:
    """What the episodes of one strategy gave.

    Args:
        values: Mean return of each point, as `Episodes.total`, in the order of the tasks.
        steps: Steps simulated for each point.
        observed: Moments of all observations.
        length: Mean length of an episode.
        broken: Episodes that were ended because the simulation gave no finite number.
    """

    values: np.ndarray
    steps: np.ndarray
    observed: Moments
    length: float
    broken: int


class Batch:
    """The episodes of several strategies on one task, in one batch.

    Policies of one shape are a group; within each step all groups act, and one simulation of the
    whole batch follows. Where episodes end early, half of the batch continues without the other
    half once that is over (`mjx_fewer`). Compiled once for each list of shapes.

    Args:
        simulation: The task.
        alive_part: Part of the bonus for being alive that returns keep.
    """

    def __init__(self, simulation: Simulation, alive_part: float = 0.0) -> None:
        self.simulation = simulation
        step = partial(_advance, simulation, (1.0 - alive_part) * simulation.alive)
        self._advance = jax.jit(step, donate_argnames="episodes")
        self._loops: dict[tuple[Any, ...], list[Any]] = {}

    def starts(self, seeds: Seeds) -> Starts:
        """Where episodes begin; another thread may make those of the next generation."""
        return make_starts(self.simulation, seeds)

    def evaluate(
        self,
        generations: Sequence[MjxGeneration],
        caps: Sequence[int],
        on_chunk: Callable[[float], None] = lambda fraction: None,
        starts: Starts | None = None,
    ) -> list[Returned]:
        """The perturbed points of one generation of each strategy.

        Args:
            generations: All with as many directions, and the same number of seeds for each point.
            caps: An episode of a strategy ends after as many steps at the latest.
            on_chunk: Called with the part of the steps that may be done by now.
            starts: Those of the generations' seeds, if they were made before.
        """
        order = _groups(generations)
        flat = [j for group in order for j in group]
        starts = (starts or self.starts([_seeds(g) for g in generations])).of(flat)
        shift = _shift([generations[j] for j in flat], starts)
        _, directions, seeds, _ = starts.observation.shape
        per = 2 * directions
        cap = np.repeat([caps[j] for j in flat], per * seeds)
        size = self.simulation.observation_size
        groups = tuple(_group([generations[j] for j in group], size) for group in order)
        given: Given = jax.device_put(Given(groups, cap, shift))
        episodes = self._run(given, _begin(starts, groups), int(cap.max()), on_chunk)
        found = _collect(episodes, shift, per)
        return [found[flat.index(j)] for j in range(len(generations))]

    def _run(
        self, given: Given, episodes: Episodes, longest: int, on_chunk: Callable[[float], None]
    ) -> Episodes:
        """Step until all episodes are over."""
        loops = self._compiled(given, episodes)
        outer: list[tuple[Episodes, tuple[np.ndarray, ...]]] = []
        done = 0
        while done < longest:
            episodes = loops[len(outer)](given, episodes=episodes)
            done += CHUNK
            on_chunk(min(done / longest, 1.0))
            # A check makes the processor wait for the GPU, so unneeded ones are skipped.
            if not self.simulation.ends:
                continue
            going = np.asarray(episodes.going)
            if not going.any():
                break
            sizes = mjx_fewer.lot_sizes(episodes)
            if len(outer) + 1 < len(loops) and (rows := mjx_fewer.half(going, sizes)) is not None:
                outer.append((episodes, rows))
                given, episodes = mjx_fewer.take(given, episodes, rows)
        for whole, rows in reversed(outer):
            episodes = mjx_fewer.put_back(whole, episodes, rows)
        return episodes

    def _compiled(self, given: Given, episodes: Episodes) -> list[Any]:
        """The loop for the whole batch, its half, and so on, compiled at once in threads."""
        shapes: list[Any] = [(given, episodes)]
        key = tuple(x.shape for x in jax.tree.leaves(shapes))
        if key not in self._loops:
            halvings = mjx_fewer.HALVINGS if self.simulation.ends else 0
            for _ in range(halvings):
                sizes = [-(-size // 2) for size in mjx_fewer.lot_sizes(shapes[-1][1])]
                if sum(sizes) < mjx_fewer.SMALLEST:
                    break
                rows = tuple(np.zeros(size, dtype=np.int64) for size in sizes)
                shapes.append(jax.eval_shape(mjx_fewer.take, *shapes[-1], rows))
            lowered = [self._advance.lower(g, episodes=e) for g, e in shapes]
            with ThreadPoolExecutor(len(lowered)) as pool:
                self._loops[key] = list(pool.map(lambda loop: loop.compile(), lowered))
        return self._loops[key]


def _begin(starts: Starts, groups: tuple[Group, ...]) -> Episodes:
    """Both sides of a direction start in the same states, one for each seed."""
    jobs, directions, seeds, _ = starts.observation.shape
    size = jobs * directions * 2 * seeds

    def spread(rows: np.ndarray) -> Array:
        wide = jnp.broadcast_to(rows[:, :, None], (jobs, directions, 2, *rows.shape[2:]))
        return wide.reshape(size, rows.shape[-1])

    observation = spread(starts.observation)
    return Episodes(
        State(*(spread(part) for part in starts.state)),
        observation,
        tuple(_blank(group, seeds) for group in groups),
        jnp.ones(size, bool),
        jnp.zeros(size),
        jnp.zeros(size, jnp.int32),
        jnp.zeros_like(observation),
        jnp.zeros_like(observation),
        jnp.zeros(size, bool),
    )


def _advance(
    simulation: Simulation,
    unpaid: float,
    given: Given,
    *,
    episodes: Episodes,
) -> Episodes:
    """A chunk of steps; `unpaid` is taken off the reward of each."""
    cap = given.cap
    wide = jnp.repeat(given.shift, len(cap) // len(given.shift), axis=0)
    step = jax.vmap(simulation.step)

    def one(now: Episodes, _: None) -> tuple[Episodes, None]:
        hidden, actions, at = [], [], 0
        for group, h in zip(given.groups, now.hidden, strict=True):
            lead = h.shape[:4]
            count = int(np.prod(lead))
            seen = now.observation[at : at + count].reshape(*lead, -1)
            h, action = _act(group, h, seen)
            hidden.append(h)
            actions.append(action.reshape(count, -1))
            at += count
        low, high = simulation.low.astype(np.float32), simulation.high.astype(np.float32)
        action = jnp.clip(jnp.concatenate(actions), low, high)
        after = step(now.state, action)
        finite = jnp.isfinite(after.reward) & jnp.isfinite(after.observation).all(axis=1)
        paid = jnp.where(now.going & finite, after.reward - unpaid, 0.0)
        away = jnp.where(now.going[:, None], now.observation - wide, 0.0)
        steps = now.steps + now.going
        going = now.going & finite & ~after.over & (steps < cap)

        def keep(new: Array, old: Array) -> Array:
            return jnp.where(going[:, None], new, old)  # or one that is over goes to infinity

        return Episodes(
            jax.tree.map(keep, after.state, now.state),
            keep(after.observation, now.observation),
            tuple(hidden),
            going,
            now.total + paid,
            steps,
            now.sums + away,
            now.squares + jnp.square(away),
            now.broken | (now.going & ~finite),
        ), None

    with jax.default_matmul_precision(PRECISION):
        return jax.lax.scan(one, episodes, None, length=CHUNK)[0]


def _act(group: Group, h: Array, seen: Array) -> tuple[Array, Array]:
    """The policies of `policies.py`: (strategies, directions, 2, seeds, ...) at a time."""
    mean, scale = (x[:, None, None, None] for x in (group.mean, group.scale))
    o = jnp.clip((seen - mean) * scale, -CLIP, CLIP)

    def times(name: str, x: Array) -> Array:
        return jnp.einsum("...ab,...sb->...sa", group.points[name], x)

    def bias(name: str) -> Array:
        return group.points[name][..., None, :]

    if "W" not in group.points:
        return h, times("K", o) + bias("c")
    h = jnp.tanh(times("W", h) + times("U", o) + bias("b"))
    return h, times("C", h) + bias("c")


def _groups(generations: Sequence[MjxGeneration]) -> list[list[int]]:
    """The strategies by the shapes of their parameters."""
    groups: dict[Any, list[int]] = {}
    for j, generation in enumerate(generations):
        shapes = tuple((name, tuple(p.shape)) for name, p in generation.centre.items())
        groups.setdefault(shapes, []).append(j)
    return list(groups.values())


def _group(generations: Sequence[MjxGeneration], size: int) -> Group:
    """The perturbed points of strategies of one shape, and what they normalise by."""
    first = generations[0]
    centres = {
        name: np.stack([generation.centre[name].numpy() for generation in generations])
        for name in first.centre
    }
    seeds = np.array([generation.seed for generation in generations], dtype=np.uint32)
    points = perturbed(centres, first.sigma, seeds, first.number, count=len(_seeds(first)))
    found = [generation.moments for generation in generations]
    means = [np.zeros(size) if m is None else m.mean for m in found]
    scales = [np.ones(size) if m is None else m.scale() for m in found]
    return Group(points, np.stack(means).astype(np.float32), np.stack(scales).astype(np.float32))


def _shift(generations: Sequence[MjxGeneration], starts: Starts) -> np.ndarray:
    """What observations are counted from, for sums in float32: a value in their midst."""
    first = starts.observation.mean(axis=(1, 2), dtype=np.float64)
    known = [generation.moments for generation in generations]
    rows = [row if m is None else m.mean for row, m in zip(first, known, strict=True)]
    return np.stack(rows).astype(np.float32)


def _blank(group: Group, seeds: int) -> Array:
    """The policies' states at the start; an affine policy has none."""
    points = group.points
    lead = next(iter(points.values())).shape[:3]
    hidden = points["W"].shape[-1] if "W" in points else 0
    return jnp.zeros((*lead, seeds, hidden))


def _seeds(generation: MjxGeneration) -> list[tuple[int, ...]]:
    """Those of each direction."""
    return [task.seeds for task in generation.tasks if task.sign == 1]


def _collect(episodes: Episodes, shift: np.ndarray, per: int) -> list[Returned]:
    """What each strategy's part of the batch gave."""
    jobs = len(shift)
    total, steps, broken = (
        np.asarray(x).reshape(jobs, per, -1)
        for x in (episodes.total, episodes.steps, episodes.broken)
    )
    size = episodes.sums.shape[1]
    sums, squares = (
        np.asarray(x.reshape(jobs, -1, size).sum(axis=1), dtype=np.float64)
        for x in (episodes.sums, episodes.squares)
    )
    found = []
    for j in range(jobs):
        count = int(steps[j].sum())
        apart = sums[j] / count
        deviations = squares[j] - np.square(apart) * count
        mean = shift[j] + apart
        least = np.maximum(ROUNDING * squares[j], count * np.square(FLOOR * mean))
        observed = Moments(count, mean, np.where(deviations > least, deviations, 0.0))
        found.append(
            Returned(
                total[j].mean(axis=1),
                steps[j].sum(axis=1),
                observed,
                float(steps[j].mean()),
                int(broken[j].sum()),
            )
        )
    return found
