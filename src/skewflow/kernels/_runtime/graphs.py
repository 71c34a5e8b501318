"""CUDA graphs that are captured without waiting and replayed one after the other."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .devices import on, stream_of

if TYPE_CHECKING:  # Triton is imported on use
    from ._launch_triton import Launch


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def capture(
    work: Callable[[], object], stream: torch.cuda.Stream, pool: Any = None
) -> torch.cuda.CUDAGraph:
    """A graph of the launches of `work`; none of them runs.

    `torch.cuda.graph` is not used because it waits for the device. Other threads may continue.

    Args:
        work: Launches on the current stream, and never waits.
        stream: Where to capture; the default stream cannot be captured.
        pool: Memory pool of another graph, from its `pool()`, to use here, too.
    """
    graph = torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream(stream.device)
    # A capture sets the seeds that the random numbers of all graphs read, the user's included.
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
    """Makes graphs that use one memory pool for their intermediate results.

    That is safe for two reasons. Nothing in the pool outlives a replay, so replays may come in any
    order. Replays never overlap: on one stream they follow one another, and another stream waits.
    The same holds for the workspace of cuBLAS, which belongs to the stream of the capture: all
    graphs made here use the same workspace, and no other stream uses it.

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
        """Like the function `capture`; `work` must free what it allocates before it returns."""
        if self._side is None:
            self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        pool = None if self._last is None else self._last.pool()
        # Kept so that the pool survives for the next graph when all users have dropped theirs.
        self._last = capture(work, self._side, pool)
        return self._last

    def follow(self) -> None:
        """Wait for a replay on another stream, before the inputs of the next are written."""
        handle = stream_of(self._device)
        if handle == self._handle:
            return
        stream = torch.cuda.current_stream(self._device)
        if self._stream is not None:
            stream.wait_stream(self._stream)
        self._stream, self._handle = stream, handle


class Repeated:
    """Launches that are equal at every step: from the third step on they are one CUDA graph.

    Args:
        launches: In their order; none of them takes a number.
    """

    def __init__(self, launches: "list[Launch]") -> None:
        self._launches, self._calls = launches, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, device: torch.device) -> None:
        """Launch them all."""
        self._calls += 1
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            self._launch(device)
            return
        if self._graph is None and self._calls > 2:  # by then they are compiled
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._graph = capture(lambda: self._launch(device), stream)
        if self._graph is None:
            self._launch(device)
        else:
            self._graph.replay()

    def _launch(self, device: torch.device) -> None:
        stream = stream_of(device)
        for launch in self._launches:
            launch({}, stream)


MOST_PLACES = 256
"""Most point addresses for which a workspace keeps launches. Copies of points have new addresses at
every step, so without a limit the launches would accumulate."""


class Workspace:
    """Memory and launches for weights of one shape, which use them in turn.

    A step begins with a few launches that read what changes from call to call. The others are the
    same as long as the points do not move.
    """

    def __init__(self) -> None:
        self._first: dict[Hashable, list[Launch]] = {}
        self._rest: dict[Hashable, Repeated] = {}

    def run(
        self,
        device: torch.device,
        place: Hashable,
        given: "dict[str, Tensor | None]",
        numbers: dict[str, Any],
        take: "Callable[[], list[Launch]]",
        make: "Callable[[], list[Launch]]",
    ) -> None:
        """Launch a step.

        Args:
            device: The device of all tensors.
            place: The addresses and strides that the rest of the launches depends on.
            given: The tensors that move from call to call, by the names of their arguments.
            numbers: The numbers that the first launches take.
            take: Makes the launches that read the given tensors and the numbers.
            make: Makes the launches after them.
        """
        kinds = [None if A is None else (A.stride(), A.data_ptr() % 16) for A in given.values()]
        layout = (place, *kinds)
        rest, first = self._rest.get(place), self._first.get(layout)
        if rest is None:
            if len(self._rest) == MOST_PLACES:
                self._rest.clear()
                self._first.clear()
            rest = self._rest[place] = Repeated(make())
        if first is None:
            first = self._first[layout] = take()
        with on(device):
            stream = stream_of(device)
            for launch in first:
                for name, A in given.items():
                    if A is not None:
                        launch.move(name, A)
                launch(numbers, stream)
            rest(device)
