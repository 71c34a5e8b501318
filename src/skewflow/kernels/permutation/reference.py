r"""Reference of `permute`: a keyed random permutation of 0..d-1, computed point by point.

A step needs "row number x of the shuffled order" without storing, sorting or sending an order, so
that one launch does everything and a CUDA graph can replay it. An alternating Feistel network is a
permutation of the n-bit numbers whatever its round function is. Applying it again to a number >= d
until the result is below d restricts it to 0..d-1. All arithmetic is on unsigned 32-bit words, so
that every backend draws the same rows.
"""

import torch
from jaxtyping import Int
from torch import Tensor

MASK = 0xFFFFFFFF
GOLDEN = 0x9E3779B9


def num_rounds(d: int) -> int:
    """Number of double rounds: twelve make all d! orders equally likely at small d."""
    return 12 if d < 64 else 6


def mix(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """A 32-bit hash: the finaliser of MurmurHash3, in which every input bit moves every output."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK
    return x ^ (x >> 16)


def make_key(
    seed: Int[Tensor, ""], stream: Int[Tensor, ""], time: Int[Tensor, "*n"]
) -> Int[Tensor, "*n"]:
    """The 32-bit key of one permutation: of a seed, a matrix (`stream`) and a step or sweep."""
    key = mix((seed & MASK) ^ 0x243F6A88)
    key = mix(key ^ ((seed >> 32) & MASK))
    key = mix(key ^ (stream & MASK))
    key = mix(key ^ (time & MASK))
    return mix(key ^ ((time >> 32) & MASK))


def permute(x: Int[Tensor, "*n"], d: int, key: Int[Tensor, "*#n"]) -> Int[Tensor, "*n"]:
    """Where the permutation of 0..d-1 with the given key sends each `x`.

    Args:
        x: Numbers in 0..d-1, int64.
        d: Size of the domain.
        key: One key, or one for each number (broadcast).

    Example:
        >>> key = make_key(*(torch.tensor(v) for v in (0, 0, 0)))
        >>> sorted(permute(torch.arange(5), 5, key).tolist())
        [0, 1, 2, 3, 4]
    """
    bits = max(1, (d - 1).bit_length())
    low = (bits + 1) // 2
    low_mask, high_mask = (1 << low) - 1, (1 << (bits - low)) - 1
    key = key.expand_as(x)
    todo = torch.ones_like(x, dtype=torch.bool)
    while todo.any():
        left, right = x >> low, x & low_mask
        for r in range(num_rounds(d)):
            left = left ^ (mix(right ^ ((key + 2 * r * GOLDEN) & MASK)) & high_mask)
            right = right ^ (mix(left ^ ((key + (2 * r + 1) * GOLDEN) & MASK)) & low_mask)
        x = torch.where(todo, (left << low) | right, x)
        todo = todo & (x >= d)
    return x


def num_rounds_of_sweep(d: int) -> int:
    """Matchings in a round robin: d - 1 for even d, d for odd."""
    return d - 1 if d % 2 == 0 else d


def matching_at(
    d: int, seed: int, stream: int, step: Int[Tensor, ""], *, independent: bool = False
) -> tuple[Int[Tensor, "m 2"], Int[Tensor, "u"]]:
    r"""The pairs of one step of the relabelled round robin, and the unpaired row, if any.

    Round $r = step \bmod n$ of the circle method with $n$ rounds, its rows renamed by the
    permutation with the key of the sweep $\lfloor step / n \rfloor$: a uniform matching at every
    step, every plane once a sweep.

    Args:
        d: Number of rows.
        seed: The optimiser's seed.
        stream: Number of the matrix.
        step: How many steps were done before, an int64 scalar on any device.
        independent: Draw a new permutation for every step and use only the first round, so that
            matchings are independent of one another.

    Example:
        >>> pairs, single = matching_at(5, seed=0, stream=0, step=torch.tensor(3))
        >>> sorted(pairs.flatten().tolist() + single.tolist())
        [0, 1, 2, 3, 4]
    """
    device = step.device
    n = num_rounds_of_sweep(d)
    r, sweep = (step * 0, step) if independent else (step % n, step // n)
    key = make_key(scalar(seed, device), scalar(stream, device), sweep)
    q = torch.arange(d // 2, device=device) + d % 2
    first, second = (r + q) % n, (r - q) % n
    if d % 2 == 0:  # q = 0 is the row in the middle of the circle, paired with the last row
        second = torch.where(q == 0, d - 1, second)
    pairs = torch.stack([permute(first, d, key), permute(second, d, key)], dim=-1)
    single = permute(r.reshape(1), d, key) if d % 2 else pairs.new_empty(0)
    return pairs, single


def order_at(d: int, seed: int, stream: int, step: Int[Tensor, ""]) -> Int[Tensor, "d"]:
    """The rows in the shuffled order of one step; its parts are the blocks.

    Example:
        >>> sorted(order_at(4, seed=0, stream=0, step=torch.tensor(9)).tolist())
        [0, 1, 2, 3]
    """
    device = step.device
    key = make_key(scalar(seed, device), scalar(stream, device), step)
    return permute(torch.arange(d, device=device), d, key)


def scalar(value: int, device: torch.device) -> Int[Tensor, ""]:
    """An int64 scalar on a device."""
    return torch.tensor(value, dtype=torch.int64, device=device)
