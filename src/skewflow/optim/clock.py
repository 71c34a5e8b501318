"""The count of steps: on the host, and on the device what CUDA graphs replay."""

import torch
from torch import Tensor

from ..kernels._runtime.graphs import is_capturing


class Clock:
    """Steps done, which are all the randomness of the fused steps needs besides the seed.

    A graph holds the host's count as it was at the capture: from then on the devices count.

    Args:
        done: Steps that the host has counted.
    """

    def __init__(self, done: int = 0) -> None:
        self.done, self.captured = done, False
        self.replayed: dict[torch.device, Tensor] = {}

    def count(self, device: torch.device) -> Tensor:
        """Steps that graphs have replayed on a device; made before any capture."""
        if device not in self.replayed:
            if is_capturing():
                raise RuntimeError(
                    f"the first step on {device} cannot be captured in a CUDA graph: take a step "
                    "before the capture."
                )
            self.replayed[device] = torch.zeros((), dtype=torch.int64, device=device)
        return self.replayed[device]

    def time(self, device: torch.device) -> int:
        """Steps done, on the host; after a capture it waits for the device."""
        return self.done + (int(self.count(device)) if self.captured else 0)

    @property
    def total(self) -> int:
        """The same of the device that has done most; where there is a graph there is only one."""
        replayed = self.replayed.values() if self.captured else ()
        return self.done + max((int(count) for count in replayed), default=0)

    def tick(self, capturing: bool) -> None:
        """One more step is done."""
        self.captured |= capturing
        if self.captured:
            for replayed in self.replayed.values():
                replayed.add_(1)
        else:
            self.done += 1

    def check_capture(self) -> None:
        """Raise if a graph would hold the steps of several devices."""
        if len(self.replayed) > 1:
            raise RuntimeError(
                "a CUDA graph holds the steps of one device: this optimiser has parameters on "
                f"{', '.join(map(str, self.replayed))}. Make an optimiser for each."
            )
