"""The count of steps: on the host, and on each device where CUDA graphs replay them."""

from typing import Any

import torch
from torch import Tensor

from ..kernels._runtime.graphs import is_capturing


class Clock:
    """Counts steps. The count and the seed determine every draw of the fused steps.

    A CUDA graph holds the host's count as it was at the capture; from then on the devices count.

    Args:
        done: Steps that the host has counted.
    """

    def __init__(self, done: int = 0) -> None:
        self.done, self.captured = done, False
        self.replayed: dict[torch.device, Tensor] = {}

    def count(self, device: torch.device) -> Tensor:
        """Steps that graphs have replayed on a device; the tensor is made before any capture."""
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

    def taken(self, state: dict[str, Any], device: torch.device) -> int | Tensor:
        """Steps that a weight with second moments has taken, given its state.

        Steps without a gradient do not count, nor do those that skipped the weight. On CUDA only
        the device knows the latter.
        """
        skipped = state.get("skipped", 0)
        if isinstance(skipped, Tensor) and skipped.device.type == "cpu":
            skipped = int(skipped)
        taken: int | Tensor = self.time(device) - state["since"] - skipped
        return taken

    @property
    def total(self) -> int:
        """The largest count of steps of any device; with a graph there is only one device."""
        replayed = self.replayed.values() if self.captured else ()
        return self.done + max((int(count) for count in replayed), default=0)

    def tick(self, capturing: bool) -> None:
        """Count a step."""
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
