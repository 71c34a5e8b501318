"""CUDA graphs of our own: captured without waiting, replayed one after the other."""

from collections.abc import Callable
from typing import Any

import torch


def capture(
    work: Callable[[], object], stream: torch.cuda.Stream, pool: Any = None
) -> torch.cuda.CUDAGraph:
    """What is launched by `work`, which does not run.

    Not by `torch.cuda.graph`, which would wait for the device; other threads may go on.

    Args:
        work: Launches on the current stream, and never waits.
        stream: Where to capture; not the default stream, which cannot be.
        pool: Memory of another graph to share, as its `pool()`.
    """
    graph = torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream(stream.device)
    # A capture sets the seeds that random numbers of all graphs read, those of the user's, too.
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    current.wait_stream(stream)
    return graph


class Graphs:
    """Makes graphs that share the memory of what they compute on the way.

    That is safe, since nothing in it outlives a replay, so that replays may come in any order, and
    since they never overlap: on one stream they follow one another, and another stream waits. The
    same holds for the workspace of cuBLAS, which belongs to the stream of the capture: there is one
    for all graphs made here, and no other stream uses it.

    Args:
        device: Where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side: torch.cuda.Stream | None = None
        self._last: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._handle: int | None = None

    def capture(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """As the function; what `work` allocates has to be free again at its end."""
        if self._side is None:
            self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        pool = None if self._last is None else self._last.pool()
        # Kept, so that the memory is there for the next one when all lots have dropped theirs.
        self._last = capture(work, self._side, pool)
        return self._last

    def follow(self) -> None:
        """Before a replay, and what is written for it: wait if the last one was elsewhere."""
        handle = torch._C._cuda_getCurrentRawStream(self._device.index)
        if handle == self._handle:
            return
        stream = torch.cuda.current_stream(self._device)
        if self._stream is not None:
            stream.wait_stream(self._stream)
        self._stream, self._handle = stream, handle
