"""A training step as one CUDA graph, where it can be captured."""

import warnings
from dataclasses import dataclass

import torch

from .timing import Step, reason

WARM_UP = 3


@dataclass(frozen=True)
class Replay:
    """A captured step; it keeps the original step, whose memory the graph uses."""

    graph: torch.cuda.CUDAGraph
    step: Step

    def __call__(self) -> None:
        """Take the step again."""
        self.graph.replay()


def captured(step: Step) -> tuple[Step, str | None]:
    """The step as a CUDA graph; or the step itself, and why it cannot be captured.

    A step that makes the host wait is detected before the capture, because a failed capture leaves
    torch's memory and random numbers in the state of a capture.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    why = _waits(step)
    if why is not None:
        return step, why
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        return step, reason(error)
    return Replay(graph, step), None


def _waits(step: Step) -> str | None:
    """The error that torch raises if the step makes the host wait for the device, or None."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return reason(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None
