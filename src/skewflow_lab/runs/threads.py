"""The number of torch's threads, which changes the last digits of sums."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in torch and in the kernels, and afterwards as many as before.

    In tiny steps threads wait for each other longer than they work: on a busy machine two
    threads were a hundred times slower than one.

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
