"""A batch of which half of the episodes are over goes on as one of half the size.

The whole batch waits for its longest episode. Policies that fall early would else be simulated to
the end of those that do not.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .mjx_tasks import State

HALVINGS = 2
"""Largest number of sizes, because the loop is compiled for each."""

SMALLEST = 512
"""Number of episodes below which fewer take the same time, because the GPU is not full."""


class Group(NamedTuple):
    """Policies of one shape: (strategies, directions, 2, ...) for each parameter.

    Args:
        points: Their parameters.
        mean: Of the observations, (strategies, size).
        scale: One over their deviations, as `mean`.
    """

    points: dict[str, Array]
    mean: Array
    scale: Array


class Given(NamedTuple):
    """What stays as it is while the episodes go on.

    Args:
        groups: The policies, in the order of the episodes.
        cap: An episode ends after as many steps at the latest.
        shift: What the sums of observations are counted from: a row for each strategy or episode.
    """

    groups: tuple[Group, ...]
    cap: Array
    shift: Array


class Episodes(NamedTuple):
    """All episodes at one time; the first axis of each entry is theirs.

    Args:
        state: Of the simulations.
        observation: What is to be acted upon next.
        hidden: The policies' states of each group, (strategies, directions, 2, seeds, ...).
        going: Whether an episode goes on.
        total: Return so far, less what training does not keep of the bonus for being alive.
        steps: Length so far.
        sums: Of the observations that were acted upon, less the moments' means.
        squares: Of the same.
        broken: Whether the simulation has given a value that is not finite.
    """

    state: State
    observation: Array
    hidden: tuple[Array, ...]
    going: Array
    total: Array
    steps: Array
    sums: Array
    squares: Array
    broken: Array


def lot_sizes(episodes: Episodes) -> list[int]:
    """Episodes of each group."""
    return [int(np.prod(h.shape[:4])) for h in episodes.hidden]


def half(going: np.ndarray, sizes: Sequence[int]) -> tuple[np.ndarray, ...] | None:
    """The rows of half of each group, with all that go on; None if more than half of one do.

    Args:
        going: Which episodes go on.
        sizes: Episodes of each group.
    """
    rows, at = [], 0
    for size in sizes:
        over, many = ~going[at : at + size], -(-size // 2)
        if size - over.sum() > many:
            return None
        rows.append(np.sort(np.argsort(over, kind="stable")[:many]))
        at += size
    return tuple(rows)


@partial(jax.jit)  # to mypy `jax.jit` alone is untyped
def take(given: Given, episodes: Episodes, rows: tuple[Array, ...]) -> tuple[Given, Episodes]:
    """Some rows of each group; each then has its own policy, (rows, 1, 1, ...)."""
    groups, hidden, flat, at = [], [], [], 0
    for group, h, own in zip(given.groups, episodes.hidden, rows, strict=True):
        strategies, directions, sides, seeds = h.shape[:4]

        def some(p: Array, own: Array = own, seeds: int = seeds) -> Array:
            return p.reshape(-1, *p.shape[3:])[own // seeds][:, None, None]

        which = own // (directions * sides * seeds)
        groups.append(
            Group(jax.tree.map(some, group.points), group.mean[which], group.scale[which])
        )
        size = strategies * directions * sides * seeds
        hidden.append(h.reshape(size, -1)[own][:, None, None, None])
        flat.append(at + own)
        at += size
    at_all = jnp.concatenate(flat)
    wide = jnp.repeat(given.shift, at // len(given.shift), axis=0)
    rest = episodes._replace(hidden=())
    fewer = jax.tree.map(lambda x: x[at_all], rest)._replace(hidden=tuple(hidden))
    return Given(tuple(groups), given.cap[at_all], wide[at_all]), fewer


@partial(jax.jit)
def put_back(whole: Episodes, fewer: Episodes, rows: tuple[Array, ...]) -> Episodes:
    """What was counted of some rows, among all; where they stopped is of no use any more."""
    starts = np.cumsum([0, *lot_sizes(whole)[:-1]])
    at = jnp.concatenate([start + own for start, own in zip(starts, rows, strict=True)])
    names = ("going", "total", "steps", "sums", "squares", "broken")
    return whole._replace(
        **{name: getattr(whole, name).at[at].set(getattr(fewer, name)) for name in names}
    )
