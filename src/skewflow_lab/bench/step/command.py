"""`skewflow bench step`: milliseconds of one step of FlowSGD and of its alternatives."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from rich.progress import Progress

from skewflow.optim import FlowSGD

from ...measure.timing import Step, interleaved, ratio
from ...runs.environment import environment
from ...runs.files import RunError, append_rows, recorded, write_atomically
from ..command import bar, check_folder, check_rounds, show, why_not, written
from ..peers.baselines import BASELINES, Make, optimizer
from .report import Row, draw, heading, notes, saved_rows, table
from .weights import SETS, Shape, haar_weights, parameters

SIZES = (256, 512, 1024, 2048)


@dataclass(frozen=True, kw_only=True)
class StepBench:
    """The weights to step, the device, and the files to write.

    FlowSGD is compared with torch's SGD and AdamW, with exact exponential, Cayley, landing and QR
    steps, with torch's parametrisation, and with geoopt, geotorch and pogo-torch if they are
    installed (extra peers). All step the same weights, in interleaved rounds. Ctrl-C keeps the
    sizes that are finished.
    """

    d: tuple[int, ...] = SIZES
    """Rows of the matrix: one measurement for each size."""
    k: int | None = None
    """Columns, at most d; d when omitted."""
    wide: bool = False
    """Store the transpose, k x d with orthonormal rows, so that a step mixes columns."""
    shapes: Literal["matrix", "plainnet110"] = "matrix"
    """A matrix, or the 109 convolutions of PlainNet-110 in one step (without --d, --k, --wide)."""
    block_sizes: tuple[int, ...] = (2, 8, 64)
    """Block sizes of FlowSGD."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Dtype of the weights and gradients."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    """Device of the weights."""
    rounds: int = 7
    """Interleaved rounds; numbers are medians over them."""
    largest_cubic: int = 4096
    """Largest d at which methods of cubic cost run."""
    out: Path = Path("runs/bench-step")
    """Folder of the JSON file and the figure."""
    save: bool = False
    """Append the numbers to results/bench/step.csv of the repository."""


@dataclass(frozen=True)
class Case:
    """Weights that are stepped together: a matrix of d rows, or a named set (d and k are None)."""

    name: str
    shapes: list[Shape]
    d: int | None = None
    k: int | None = None

    @property
    def rows(self) -> int:
        """Rows of the tallest of its matrices."""
        return self.d or max(max(s[0], torch.Size(s[1:]).numel()) for s in self.shapes)


def cases(config: StepBench) -> list[Case]:
    """The weights of each measurement."""
    if config.shapes != "matrix":
        return [Case(config.shapes, SETS[config.shapes]())]
    found = []
    for d in config.d:
        k = config.k or d
        shape = (k, d) if config.wide else (d, k)
        found.append(Case(f"{shape[0]}x{shape[1]}", [shape], d, k))
    return found


def methods(config: StepBench, case: Case) -> dict[str, Make | str]:
    """Every method by name: a function that makes it, or the reason why it is not run."""
    options = {_torch_step(config): True} if _torch_step(config) != "default" else {}
    found: dict[str, Make | str] = {
        "SGD": optimizer(torch.optim.SGD, **options),
        "SGD momentum": optimizer(torch.optim.SGD, momentum=0.9, **options),
        "AdamW": optimizer(torch.optim.AdamW, **options),
    }
    for s in config.block_sizes:
        step = optimizer(FlowSGD, block_size=s)
        found[f"FlowSGD s={s}"] = step if s < case.rows else "not run: s >= d is the dense step"
    s = min(config.block_sizes)
    found[f"FlowSGD s={s} momentum"] = optimizer(FlowSGD, momentum=0.9, block_size=s)
    cubic = {"FlowSGD dense": optimizer(FlowSGD, block_size="dense"), **BASELINES}
    too_large = case.rows > config.largest_cubic
    for name, make in cubic.items():
        found[name] = f"not run: d > --largest-cubic {config.largest_cubic}" if too_large else make
    return found


def build(config: StepBench, case: Case) -> tuple[dict[str, Step], dict[str, str | None]]:
    """The steps that can run, and for every method None or the reason why it does not run."""
    device = torch.device(config.device)
    weights, gradients = haar_weights(case.shapes, getattr(torch, config.dtype), device)
    steps: dict[str, Step] = {}
    why: dict[str, str | None] = {}
    for name, make in methods(config, case).items():
        why[name] = make if isinstance(make, str) else None
        if isinstance(make, str):
            continue
        try:
            steps[name] = make(parameters(weights, gradients)).step
        except Exception as error:  # a rival's failure is a result; the others continue
            why[name] = why_not(error)
    return steps, why


def measure(config: StepBench, case: Case, progress: Progress) -> list[Row]:
    """One row for each method: its times, or the reason why they are missing."""
    task = progress.add_task(case.name, total=None)
    steps, why = build(config, case)
    total = len(steps) * (config.rounds + 1)
    progress.update(task, total=total)
    times, failures = interleaved(
        steps,
        torch.device(config.device),
        rounds=config.rounds,
        on_visit=lambda: progress.advance(task),
    )
    progress.update(task, completed=total)  # failed methods have no visits
    why |= {name: f"failed: {text}" for name, text in failures.items()}
    rows = []
    for name, note in why.items():
        row: Row = {"case": case.name, "d": case.d, "k": case.k, "method": name}
        base = "SGD momentum" if "momentum" in name else "SGD"
        row |= {"ms": None, "ratio": None, "base": base, "times": [], "note": note}
        if name in times:
            row |= {"ms": median(times[name]), "times": times[name]}
            row["ratio"] = ratio(times, name, base) if base in times else None
        rows.append(row)
    return rows


def run(config: StepBench, progress: Progress) -> dict[str, Any]:
    """Measure every case; write the JSON file after each, so that an interrupted run keeps them.

    Returns:
        The contents of the JSON file. `complete` is False if Ctrl-C ended the run.
    """
    rows: list[Row] = []
    result: dict[str, Any] = {
        "config": {key: value for key, value in asdict(config).items() if key not in _DESTINATION},
        "torch_step": _torch_step(config),
        "environment": environment(config.device),
        "complete": False,
        "rows": rows,
    }
    todo = cases(config)
    for case in todo:
        try:
            rows += measure(config, case, progress)
        except KeyboardInterrupt:
            break
        result["complete"] = case is todo[-1]
        write_atomically(json_path(config), json.dumps(result, indent=1) + "\n")
    return result


def main(config: StepBench) -> None:
    """Time one step of FlowSGD and of its alternatives."""
    check(config)
    with bar() as progress:
        result = run(config, progress)
    if not result["rows"]:
        show("interrupted before the first size was finished: nothing is written")
        raise SystemExit(130)
    paths = [json_path(config), *draw(result, config.out)]
    if config.save:
        paths.append(recorded("step.csv"))
        append_rows(paths[-1], saved_rows(result))
    show(heading(result), table(result), *notes(result), written(paths))
    if not result["complete"]:
        raise SystemExit(130)


def check(config: StepBench) -> None:
    """Refuse settings that cannot run, before anything is measured."""
    check_rounds(config.device, config.rounds, config.save)
    check_folder(config.out)
    if not config.d or min(config.d) < 2:
        raise RunError(f"--d must be sizes of at least 2: got {config.d}.")
    if not config.block_sizes or min(config.block_sizes) < 2:
        raise RunError(f"--block-sizes must be at least 2: got {config.block_sizes}.")
    if config.k is not None and not 1 <= config.k <= min(config.d):
        raise RunError(
            f"--k must lie between 1 and the smallest --d: got k={config.k}, d={config.d}. "
            "For a wide matrix give its longer side as --d and add --wide."
        )
    if config.shapes != "matrix" and (config.d != SIZES or config.k is not None or config.wide):
        raise RunError(f"--shapes {config.shapes} fixes the sizes: leave out --d, --k, --wide.")


def json_path(config: StepBench) -> Path:
    """The JSON file of this run."""
    name = "step" if config.shapes == "matrix" else f"step-{config.shapes}"
    return config.out / f"{name}.json"


_DESTINATION = ("out", "save")  # settings on which the numbers do not depend


def _torch_step(config: StepBench) -> str:
    """The form of torch's optimisers that runs: foreach for many weights, fused on CUDA."""
    if config.shapes != "matrix":
        return "foreach"
    return "fused" if config.device == "cuda" else "default"
