"""Kernels are launched on the current device, which need not be that of the weight."""

from contextlib import AbstractContextManager, nullcontext

import torch


def on(device: torch.device) -> AbstractContextManager[object]:
    """While this lasts the device is the current one, if it is a CUDA device."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
