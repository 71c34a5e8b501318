"""The problems of the suite, by name, at their authors' sizes and at smaller ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .copying import CopyingNet
from .matrix_problems import PCA, Assignment, Brockett, Procrustes
from .problem import Problem
from .stochastic_problems import ICA, OnlinePCA, WideLinear

Size = Literal["full", "reduced", "tiny"]


@dataclass(frozen=True)
class Entry:
    """A problem of the suite.

    Args:
        kind: Makes the problem from its sizes for a device.
        full: The sizes of its authors.
        reduced: Sizes at which two cores spend most time in products.
        tiny: Sizes for tests, at which Python takes most of the time.
        seconds: Seconds of a run at full size, and at smaller sizes.
        floor: Gap at which the problem counts as solved, relative to that of the start.
    """

    kind: type[Problem]
    full: tuple[Any, ...]
    reduced: tuple[Any, ...]
    tiny: tuple[Any, ...]
    seconds: tuple[float, float]
    floor: float = 1e-6

    def make(self, size: Size, device: str) -> Problem:
        """Make the problem."""
        make: Callable[..., Problem] = self.kind
        return make(*self.sizes(size), device=device)

    def sizes(self, size: Size) -> tuple[Any, ...]:
        """The sizes of the problem."""
        return (self.full, self.reduced, self.tiny)[get_args(Size).index(size)]

    def budget(self, size: Size) -> float:
        """Seconds of a run."""
        return self.seconds[size != "full"]


SUITE: dict[str, Entry] = {
    "procrustes": Entry(Procrustes, (2000,), (256,), (128,), (0.5, 1.5)),
    "pca": Entry(PCA, (2000, 1500), (400, 300), (200, 150), (0.5, 1.5)),
    "online-pca-100": Entry(
        OnlinePCA, (15000, 5000, 100, 128), (4000, 1000, 50, 64), (2000, 256, 16, 32), (0.5, 1.5)
    ),
    "online-pca-1000": Entry(
        OnlinePCA, (15000, 5000, 1000, 128), (4000, 1000, 200, 64), (2000, 256, 64, 32), (0.5, 1.5)
    ),
    "online-pca-4000": Entry(
        OnlinePCA, (15000, 5000, 4000, 128), (4000, 1000, 800, 64), (2000, 256, 200, 32), (0.7, 1.5)
    ),
    "batched-procrustes": Entry(Procrustes, (100, (200,)), (50, (40,)), (24, (20,)), (0.7, 1.5)),
    "ica": Entry(ICA, (50000, 256, 128), (10000, 128, 64), (5000, 64, 32), (1.0, 1.5), 1e-4),
    # Runs of one setting end in minima whose gaps differ by as much as this floor.
    "assignment": Entry(Assignment, (1000,), (200,), (100,), (0.5, 1.5), 5e-2),
    "brockett": Entry(Brockett, (512,), (200,), (100,), (0.7, 1.5)),
    "wide-linear": Entry(WideLinear, (4096, 256), (512, 64), (256, 32), (0.5, 1.5)),
    "copying": Entry(CopyingNet, (256, 100, 128), (128, 20, 64), (64, 10, 32), (2.0, 3.0), 1e-3),
}
