"""Random choices that the samplers share; random numbers are drawn on the generator's device."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import _validate
from ..tournaments.partitions import Partition, SizeCounts


def permutation(d: int, generator: torch.Generator) -> Int[Tensor, "d"]:
    """A uniform permutation of 0..d-1."""
    _validate.generator(generator)
    return torch.randperm(d, generator=generator, device=generator.device)


def uniform(generator: torch.Generator) -> float:
    """A number in [0, 1)."""
    _validate.generator(generator)
    u = torch.rand((), generator=generator, device=generator.device, dtype=torch.float64)
    return u.item()


def categorical(
    weights: Float[Tensor, "n"], count: int, generator: torch.Generator
) -> Int[Tensor, "m"]:
    """`count` independent indices, each with probability proportional to its weight."""
    _validate.generator(generator)
    steps = weights.to(torch.float64).cumsum(0)
    u = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    index = torch.searchsorted(steps, u.to(steps.device) * steps[-1], right=True)
    # u * total may round up to total, which stands for the last index with positive weight.
    return index.clamp(max=int(torch.searchsorted(steps, steps[-1])))


def completion(d: int, sizes: SizeCounts, i: int, j: int, generator: torch.Generator) -> Partition:
    """A uniform partition among those that hold the edge (i, j), in O(d).

    The edge is placed in a block of size s with probability proportional to s(s-1) times the number
    of such blocks; a random permutation places the other rows.
    """
    place = place_of_edge(sizes, generator)
    return Partition.from_order(completed(permutation(d - 2, generator), i, j, place), sizes)


def place_of_edge(sizes: SizeCounts, generator: torch.Generator) -> int:
    """A random position for an edge in the order of rows that is cut into a partition."""
    places = torch.tensor([float(count * size * (size - 1)) for size, count in sizes])
    group = 0 if len(places.nonzero()) == 1 else int(categorical(places, 1, generator))
    return sum(size * count for size, count in sizes[:group])


def completed(rest: Int[Tensor, "n"], i: int, j: int, place: int) -> Int[Tensor, "d"]:
    """The order with i and j at `place` and all other rows in the order of `rest`."""
    i, j = min(i, j), max(i, j)
    rest = rest + (rest >= i)
    rest = rest + (rest >= j)
    edge = torch.tensor([i, j], device=rest.device)
    return torch.cat([rest[:place], edge, rest[place:]])
