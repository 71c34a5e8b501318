"""Directions of a strategy, drawn by JAX where the rollouts are: no noise travels, only seeds."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The parameters' names and shapes, in any order: JAX gives a dict back sorted by its keys."""


def directions(shapes: Shapes, seed: Array, generation: Array, numbers: Array) -> dict[str, Array]:
    """Standard Gaussian directions; each depends only on (seed, generation, its number)."""

    def one(number: Array) -> dict[str, Array]:
        key = jax.random.key(seed, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, generation), number)
        keys = jax.random.split(key, len(shapes))
        return {
            name: jax.random.normal(k, shape, jnp.float32)
            for k, (name, shape) in zip(keys, sorted(shapes), strict=True)
        }

    return jax.vmap(one)(numbers)


@partial(jax.jit, static_argnames="count")
def perturbed(
    centres: Mapping[str, Array], sigma: float, seeds: Array, generation: int, *, count: int
) -> dict[str, Array]:
    """The points on both sides of the directions.

    Args:
        centres: The parameters of several strategies, (strategies, ...).
        sigma: Length of a perturbation.
        seeds: One for each strategy.
        generation: Which one.
        count: Directions.

    Returns:
        (strategies, directions, 2, ...) for each parameter, plus before minus.
    """
    shapes = tuple((name, p.shape[1:]) for name, p in centres.items())
    numbers = jnp.arange(count, dtype=jnp.uint32)
    noise = jax.vmap(lambda seed: directions(shapes, seed, generation, numbers))(seeds)
    points = {}
    for name, p in centres.items():
        step = sigma * jnp.stack([noise[name], -noise[name]], axis=2)
        points[name] = p[:, None, None] + step
    return points


@partial(jax.jit, static_argnames="shapes")
def weighted_sum(shapes: Shapes, weights: Array, seed: Array, generation: int) -> dict[str, Array]:
    """The sum of the directions of one strategy, each with its weight."""
    numbers = jnp.arange(len(weights), dtype=jnp.uint32)
    noise = directions(shapes, seed, generation, numbers)
    with jax.default_matmul_precision("highest"):
        return {name: jnp.tensordot(weights, delta, axes=1) for name, delta in noise.items()}
