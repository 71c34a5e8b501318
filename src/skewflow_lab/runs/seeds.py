"""Random numbers that depend on a seed and a name, not on earlier draws."""

import hashlib

import torch


def spawn(seed: int, *path: str | int) -> torch.Generator:
    """A separate generator for each path of names below a seed (not in the paper).

    A cell that draws from it gives the same numbers in whatever order the cells run.

    Example:
        >>> a, b = spawn(0, "noise", 1), spawn(0, "noise", 2)
        >>> bool(torch.equal(torch.rand(3, generator=a), torch.rand(3, generator=b)))
        False
    """
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    # A CPU generator takes 64 bits, but mixes only 32 of them well.
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
