"""How many threads torch uses: a sum over two of them ends in other digits than over one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch and numba work on one thread, then on as many as before (not in the paper).

    Where steps are tiny, threads wait for each other longer than they work: on a busy machine two
    of them were a hundred times slower than one.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    import numba  # of the CPU's kernels: who computes elsewhere may have none

    from ..kernels.permutation.cpu import start_threads

    start_threads()
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])
