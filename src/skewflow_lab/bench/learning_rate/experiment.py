"""The learning rates as an experiment: a cell for each task and size of its matrices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...data.images import Digits, default_images
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from ...runs.threads import one_thread
from . import report
from .search import GRID, best_of, default_rate, search, train
from .tasks import LARGEST, TASKS

LAWS = ("rms", "spectral", "unbiased")


@dataclass(frozen=True, kw_only=True)
class LearningRateConfig:
    """Which tasks and sizes, and how long."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """Tasks; those of earlier parts of a run stay in its folder, see --resume."""
    sizes: tuple[int, ...] = (64, 128, 256, 1024)
    """d: rows of the matrices. Recurrent nets leave out those above 256, of long sequences 64."""
    middle: int = 128
    """The size at which all block sizes run."""
    block_sizes: tuple[int, ...] = (2, 8, 32)
    """s, beside exact steps; the second one runs at every size."""
    num_steps: int = 200
    """Steps of a run."""
    data: Digits = field(default_factory=default_images)
    """Images: mnist, or digits in its place."""


class LearningRate(Experiment[LearningRateConfig]):
    """Every law of the step searches its rate, at every block size and size of matrices."""

    name = "learning-rate"
    group = "bench"
    title = "The best learning rate, by the law of the step, block size and size of matrices"
    paper = (
        "Not in the paper, whose steps have the unbiased law: a rate times (d - 1) / (s - 1) times "
        "the drawn entries of the generator."
    )
    presets: Mapping[str, LearningRateConfig] = {
        "quick": LearningRateConfig(
            tasks=("rotation", "image-pairs", "tanh-net"),
            sizes=(16, 32),
            middle=16,
            block_sizes=(2, 4),
            num_steps=40,
            data="digits",
        ),
        "paper": LearningRateConfig(),
    }
    preset_help = '"quick" takes seconds, "paper" half an hour on one core.'
    parts = frozenset({"tasks"})

    def cells(self, config: LearningRateConfig) -> Sequence[str]:
        """One for each task and size, small ones first."""
        unknown = [name for name in config.tasks if name not in TASKS]
        if unknown:
            raise RunError(f"--tasks must be of {', '.join(TASKS)}: got {unknown[0]!r}.")
        if config.middle not in config.sizes or len(config.block_sizes) < 2:
            raise RunError("--middle must be one of --sizes, and there must be two --block-sizes.")
        return [
            f"{name}_{d}"
            for d in sorted(config.sizes)
            for name in config.tasks
            if d <= LARGEST.get(name, d)
        ]

    @one_thread()
    def run_cell(self, config: LearningRateConfig, cell: str, run: Run) -> dict[str, Any]:
        """All laws at all block sizes of this size."""
        name, _, size = cell.partition("_")
        d = int(size)
        make = TASKS[name](d, config.data)
        fixed = config.block_sizes[1]
        sizes: list[int | str] = [*config.block_sizes, "dense"] if d == config.middle else [fixed]
        settings: list[dict[str, Any]] = []
        unbiased = -4
        for s in reversed(sizes):
            for law in LAWS:

                def loss(exponent: int, law: str = law, s: int | str = s) -> float | None:
                    return train(make(), law, s, 2.0**exponent, config.num_steps)

                found = search(loss, [unbiased] if law == "unbiased" else GRID)
                if law == "unbiased":
                    unbiased = best_of(found)
                rates = [{"exponent": e, "loss": value} for e, value in found.items()]
                settings.append({"s": s, "law": law, "rates": rates})
                if law != "unbiased":
                    settings[-1]["default"] = train(
                        make(), law, s, default_rate(name), config.num_steps
                    )
                run.progress(len(settings) / (len(LAWS) * len(sizes)))
        return {"task": name, "d": d, "settings": settings}

    def summarise(
        self, config: LearningRateConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Every search, and what they say together."""
        return report.summary(list(cells.values()), config.num_steps, config.data)

    def verdict(self, results: Mapping[str, Any]) -> str:
        """How far the best rates of each law lie apart, and what the default loses."""
        return report.verdict(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """Best rates and losses of each setting; spans of each law."""
        return report.tables(results)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The losses over the rates."""
        return report.figures(results)
