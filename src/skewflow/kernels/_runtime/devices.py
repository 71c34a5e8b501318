"""The device and the stream that a kernel is launched on."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def on(device: torch.device) -> AbstractContextManager[object]:
    """Context in which the device is the current one, if it is a CUDA device."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def stream_of(device: torch.device) -> int:
    """The handle of the device's current CUDA stream; 0 for the interpreter, which has none.

    Making a stream object instead would take a tenth of a step's host time.
    """
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def on_device(lr: float, device: torch.device) -> Tensor:
    """The learning rate in the form that steps on the device take."""
    return torch.full((), lr, dtype=torch.float64, device=device)
