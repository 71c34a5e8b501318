"""Torch's threads: one for checks of small matrices, and for whole steps in a forked process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

GRAIN = 1 << 17
"""Entries of a matrix per thread. On two idle cores a second thread pays from 2^18 entries on; on
busy cores threads wait for each other a hundred times longer than a small matrix takes."""


class Process:
    """Whether this process was forked from another, whose threads it lacks."""

    forked = False

    @classmethod
    def after_fork(cls) -> None:
        """Note it."""
        cls.forked = True


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=Process.after_fork)


@contextmanager
def few_threads(work: int) -> Iterator[None]:
    """Let torch use one thread where `work` entries are too few for two.

    Example:
        >>> with few_threads(64 * 64):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    if before == 1 or work >= 2 * GRAIN:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
