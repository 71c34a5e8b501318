"""The problems of the suite, by name, at their authors' sizes and at sizes for two cores."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from .copying import CopyingNet
from .matrix_problems import PCA, Assignment, Brockett, Procrustes
from .problem import Problem
from .stochastic_problems import ICA, OnlinePCA, WideLinear

Size = Literal["full", "reduced"]


@dataclass(frozen=True)
class Entry:
    """A problem by its sizes.

    Args:
        full: Makes it at its authors' size for a device.
        reduced: Makes it small.
        seconds: Of a run at full and at reduced size.
        floor: A gap that counts as solved, relative to that of the start.
    """

    full: Callable[..., Problem]
    reduced: Callable[..., Problem]
    seconds: tuple[float, float]
    floor: float = 1e-6

    def make(self, size: Size, device: str) -> Problem:
        """The problem, ready."""
        return (self.full if size == "full" else self.reduced)(device=device)

    def budget(self, size: Size) -> float:
        """Seconds of a run."""
        return self.seconds[size == "reduced"]


SUITE: dict[str, Entry] = {
    "procrustes": Entry(partial(Procrustes, 2000), partial(Procrustes, 128), (1.5, 1.0)),
    "pca": Entry(partial(PCA, 2000, 1500), partial(PCA, 200, 150), (1.5, 1.0)),
    "online-pca-100": Entry(
        partial(OnlinePCA, 15000, 5000, 100, 128), partial(OnlinePCA, 2000, 256, 16, 32), (1.0, 1.0)
    ),
    "online-pca-1000": Entry(
        partial(OnlinePCA, 15000, 5000, 1000, 128),
        partial(OnlinePCA, 2000, 256, 64, 32),
        (1.5, 1.0),
    ),
    "online-pca-4000": Entry(
        partial(OnlinePCA, 15000, 5000, 4000, 128),
        partial(OnlinePCA, 2000, 256, 200, 32),
        (2.0, 1.0),
    ),
    "batched-procrustes": Entry(
        partial(Procrustes, 100, (200,)), partial(Procrustes, 24, (20,)), (0.7, 1.0)
    ),
    "ica": Entry(partial(ICA, 50000, 256, 128), partial(ICA, 5000, 64, 32), (0.7, 1.0), 1e-4),
    "assignment": Entry(partial(Assignment, 1000), partial(Assignment, 100), (1.5, 1.0), 1e-4),
    "brockett": Entry(partial(Brockett, 512), partial(Brockett, 100), (0.7, 1.0)),
    "wide-linear": Entry(partial(WideLinear, 4096, 256), partial(WideLinear, 256, 32), (1.5, 1.0)),
    "copying": Entry(
        partial(CopyingNet, 256, 100, 128), partial(CopyingNet, 64, 10, 32), (2.5, 2.0), 1e-3
    ),
}
