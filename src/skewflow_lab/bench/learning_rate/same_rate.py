"""One script with one learning rate at every size: block_size="auto" beside exact steps."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from skewflow.errors import SkewflowError
from skewflow.geometry.matrices import MatrixView
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.optim.auto import auto_choice

from ...data.images import Digits, default_images
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from .search import MOMENTUM
from .tasks import TASKS, Make, Task, image_pairs

RATES = {"FlowSGD": 0.1, "FlowAdam": 0.001}
"""The learning rates of the script."""
MOST_TIME = 1.3
"""Largest accepted time to the loss of exact steps, over their time."""
MOST_STEPS = 2
"""How many times as many steps "auto" may take."""
CUDA = torch.device("cuda")
SCRIPTS: dict[str, Make] = {
    "rotation": TASKS["rotation"],
    "image-pairs": image_pairs,
    "maxmin-net": TASKS["maxmin-net"],
}
"""Exact gradients, batches, and a network."""


@dataclass(frozen=True, kw_only=True)
class SameRateConfig:
    """Which tasks and sizes, and how long."""

    tasks: tuple[str, ...] = tuple(SCRIPTS)
    """What is trained; those of earlier parts of a run stay in its folder, see --resume."""
    sizes: tuple[int, ...] = (256, 512, 600, 640, 700, 1024)
    """d: rows of the matrices."""
    num_steps: int = 20
    """Exact steps."""
    data: Digits = field(default_factory=default_images)
    """Images: mnist, or digits in its place."""


class SameRate(Experiment[SameRateConfig]):
    """Exact steps and "auto" take turns; "auto" goes on until it reaches the loss of exact steps.

    The results are times, so the summary of a second run differs.
    """

    name = "same-rate"
    group = "bench"
    title = 'One learning rate at every size: block_size="auto" beside exact steps'
    paper = "Not in the paper, where block sizes are set by hand."
    presets: Mapping[str, SameRateConfig] = {
        "quick": SameRateConfig(sizes=(16, 24), num_steps=4, data="digits"),
        "paper": SameRateConfig(),
    }
    preset_help = '"quick" takes seconds, "paper" five minutes on two cores.'
    parts = frozenset({"tasks"})

    def cells(self, config: SameRateConfig) -> Sequence[str]:
        """One for each task, size and optimiser."""
        unknown = [name for name in config.tasks if name not in SCRIPTS]
        if unknown:
            raise RunError(f"--tasks must be of {', '.join(SCRIPTS)}: got {unknown[0]!r}.")
        return [
            f"{task}_{d}_{name}" for d in config.sizes for task in config.tasks for name in RATES
        ]

    def run_cell(self, config: SameRateConfig, cell: str, run: Run) -> dict[str, Any]:
        """Race both."""
        name, size, which = cell.split("_")
        make = SCRIPTS[name](int(size), config.data)
        exact, auto = Racer(make(), which, "dense"), Racer(make(), which, "auto")
        start = exact.task.loss()
        for step in range(config.num_steps):
            exact.step()
            auto.step()
            run.progress(step / config.num_steps)
        target, as_many = exact.loss(), auto.loss()
        while not auto.loss() <= target and auto.steps < MOST_STEPS * config.num_steps:
            auto.step()
        return {
            "task": name,
            "d": int(size),
            "optimiser": which,
            "start": start,
            "exact": target,
            "exact seconds": exact.seconds,
            "auto": as_many,
            "arrived": auto.loss() <= target,
            "steps": auto.steps,
            "seconds": auto.seconds,
            **on_cuda(make, which, config.num_steps, {"exp": target, auto.retraction: as_many}),
        }

    def summarise(
        self, config: SameRateConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Every race."""
        return {"num_steps": config.num_steps, "rows": list(cells.values())}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Where "auto" is slow, and whether anything diverges."""
        rows = results["rows"]
        slow = [z for z in rows if not _ratio(z) <= MOST_TIME]
        worst = max(map(_ratio, rows))
        but = "; not on " + ", ".join(map(_name, slow)) if slow else ""
        lost = [z for z in rows if not _finite(z["auto"], z["cuda"]) and _finite(z["exact"])]
        told = f"diverges on {', '.join(map(_name, lost))}" if lost else "diverges nowhere"
        return (
            f'With one learning rate for every size, block_size="auto" reaches the loss of '
            f"{results['num_steps']} exact steps in at most {MOST_TIME:g} times their time on "
            f"{len(rows) - len(slow)} of {len(rows)} runs{but}; the largest ratio is {worst:.3g}. "
            f"It {told} where exact steps converge. On CUDA it takes "
            f"{' or '.join(sorted({z['on CUDA'] for z in rows}))} steps; as many of them, taken on "
            f"the CPU, make at least {min(map(_progress, rows)):.3g} of the progress of exact ones."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """A row for each race."""
        steps = results["num_steps"]
        rows = tuple(
            (
                z["task"],
                z["d"],
                z["optimiser"],
                1e3 * z["exact seconds"] / steps,
                1e3 * z["seconds"] / z["steps"],
                z["start"],
                z["exact"],
                z["auto"],
                z["steps"],
                _ratio(z) if z["arrived"] else None,
                z["on CUDA"],
                z["cuda"],
            )
            for z in results["rows"]
        )
        caption = (
            f"Milliseconds of a gradient and a step; the loss after {steps} steps; the steps that "
            '"auto" takes to the loss of the exact ones, and its time over theirs. The last two '
            'columns are what "auto" chooses on CUDA, and the loss after as many such steps, taken '
            f"on the CPU. lr is {RATES['FlowSGD']:g} for FlowSGD, with momentum {MOMENTUM:g}, and "
            f"{RATES['FlowAdam']:g} for FlowAdam."
        )
        columns = (
            *("task", "d", "optimiser", "exact, ms", "auto, ms", "start", "exact", "auto"),
            *("steps", "time", "on CUDA", "on CUDA, loss"),
        )
        return [Table("same-rate", caption, columns, rows)]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """None."""
        return []


class Racer:
    """A task with its optimiser, and the times of its gradients and steps."""

    def __init__(self, task: Task, which: str, size: str, retraction: str = "auto") -> None:
        self.task = task
        self._times: list[float] = []
        options: dict[str, Any] = {"block_size": size, "retraction": retraction}
        if which == "FlowSGD":
            self._optimizer: FlowSGD | FlowAdam = FlowSGD(
                task.weights, RATES[which], MOMENTUM, **options
            )
        else:
            self._optimizer = FlowAdam(task.weights, RATES[which], **options)
        self._lost = False

    @property
    def retraction(self) -> str:
        """That of its exact steps on this device."""
        (group,) = self._optimizer.param_groups
        return auto_choice((1, 4, 4), torch.device("cpu"), group).retraction

    def step(self) -> None:
        """A gradient and a step."""
        began = time.perf_counter()
        try:
            self.task.backward(len(self._times), 1.0)
            self._optimizer.step()
        except SkewflowError:  # a gradient that is not finite
            self._lost = True
        self._times.append(time.perf_counter() - began)

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self._times)

    @property
    def seconds(self) -> float:
        """The median time of a step, times the steps: other processes may stop one of them."""
        return median(self._times) * self.steps

    def loss(self) -> float:
        """The loss now; infinity if a number was not finite."""
        loss = math.inf if self._lost else self.task.loss()
        return loss if math.isfinite(loss) else math.inf


def on_cuda(
    make: Callable[[], Task], which: str, num_steps: int, known: Mapping[str, float]
) -> dict[str, Any]:
    """What "auto" chooses on CUDA, and the loss after some such steps, unless it is known."""
    task = make()
    (group,) = Racer(task, which, "auto")._optimizer.param_groups
    matrices = MatrixView.of(task.weights[0]).matrices
    choice = auto_choice(matrices, CUDA, group)
    told = {"on CUDA": f"{choice.size} {choice.retraction}"}
    if choice.size == "dense" and choice.retraction in known:
        return told | {"cuda": known[choice.retraction]}
    forced = Racer(task, which, str(choice.size), choice.retraction)
    for _ in range(num_steps):
        forced.step()
    return told | {"cuda": forced.loss()}


def _ratio(z: Mapping[str, Any]) -> float:
    """The time of "auto" to the loss of exact steps over theirs; infinity if it misses it."""
    return z["seconds"] / z["exact seconds"] if z["arrived"] else math.inf


def _progress(z: Mapping[str, Any]) -> float:
    """The progress of the steps on CUDA over that of exact ones."""
    return float((z["start"] - z["cuda"]) / (z["start"] - z["exact"]))


def _finite(*losses: float) -> bool:
    return all(map(math.isfinite, losses))


def _name(z: Mapping[str, Any]) -> str:
    return f"{z['task']} at d = {z['d']} with {z['optimiser']}"
