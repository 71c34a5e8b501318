"""How many threads torch uses: a sum over two of them ends in other digits than over one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, and the kernels with it, work on one thread, then on as many as before.

    Where steps are tiny, threads wait for each other longer than they work: on a busy machine two
    of them were a hundred times slower than one.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
