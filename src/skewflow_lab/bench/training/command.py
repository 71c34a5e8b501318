"""`skewflow bench training`: seconds of a training step, and the cost of orthogonal weights."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from skewflow.nn import orthogonal_parameters

from ...measure.capture import captured
from ...measure.timing import Step, interleaved, ratio
from ...models.plainnet import PlainNet
from ...models.vit import ViT
from ...runs.environment import environment
from ...runs.files import RunError, append_rows, recorded, write_atomically
from ..command import bar, check_folder, check_rounds, show, why_not, written
from .report import Row, heading, notes, saved_rows, table
from .trainers import BASE, TRAINERS, block_sizes

SIZES = {"plainnet110": (110, 16), "vit": (6, 1024)}
"""Default depth and width of the networks."""
VISIT = 0.5
"""Seconds for which a method is timed in a round; at least one step."""
ANGLE = 1e-3
"""Length in radians of the largest gradient of an orthogonal weight, times the learning rate."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class TrainingBench:
    """The network to train, the precision and mode, and the files to write.

    A training step is forward pass, cross entropy, backward pass and optimiser, on a batch of
    random images of CIFAR-10's shape on the device. Plain SGD is compared with FlowSGD with blocks
    of 2 and of r* = d / ln d rows, with "auto" and with the exact step, with torch's orthogonal
    parametrisation, and with geoopt and pogo-torch if they are installed (extra peers); all with
    momentum 0.9. Every method trains a copy of the network, in interleaved rounds, and its overhead
    is the median over rounds of the ratio to SGD in the same round.
    """

    network: Literal["plainnet110", "vit"] = "plainnet110"
    """PlainNet-110, whose 109 convolutions are orthogonal; or a transformer of 6 layers and width
    1024, whose 18 matrices of queries, keys and attention outputs are."""
    depth: int | None = None
    """Number of layers instead of the default: 3 n + 2 for PlainNet, any number for the
    transformer."""
    width: int | None = None
    """Channels instead of the default: 16 in the first stage of PlainNet, 1024 in the transformer.
    """
    batch: int = 128
    """Images in a batch."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Precision of products and convolutions: true float32, TF32 (also in rivals' optimisers), or
    bfloat16 by autocast. The weights are float32."""
    mode: Literal["eager", "graph"] = "eager"
    """Launch every kernel, or replay the step as one CUDA graph. A method that cannot be captured
    is timed eagerly, and the table says so."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    """Device of the network."""
    rounds: int = 7
    """Interleaved rounds; numbers are medians over them."""
    out: Path = Path("runs/bench-training")
    """Folder of the JSON file."""
    save: bool = False
    """Append the numbers to results/bench/training.csv of the repository."""


def size(config: TrainingBench) -> tuple[int, int]:
    """Depth and width of the network."""
    depth, width = SIZES[config.network]
    return (
        depth if config.depth is None else config.depth,
        width if config.width is None else config.width,
    )


def build(config: TrainingBench) -> tuple[nn.Module, Batch]:
    """The network and the images, the same at every call."""
    depth, width = size(config)
    make = PlainNet if config.network == "plainnet110" else ViT
    with torch.random.fork_rng(devices=[]):  # drawn on the CPU, so the same on every device
        torch.manual_seed(0)
        try:
            model = make(depth, width)
        except ValueError as error:
            raise RunError(f"--depth or --width: {error}") from error
        images, labels = torch.randn(config.batch, 3, 32, 32), torch.randint(10, (config.batch,))
    return model.to(config.device), (images.to(config.device), labels.to(config.device))


def training_step(
    config: TrainingBench, model: nn.Module, batch: Batch, optimise: Step = lambda: None
) -> Step:
    """A function that runs forward pass, backward pass and optimiser."""
    images, labels = batch

    def step() -> None:
        model.zero_grad()
        with torch.autocast(config.device, torch.bfloat16, enabled=config.precision == "bf16"):
            loss = cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimise()

    return step


def learning_rate(config: TrainingBench, model: nn.Module, batch: Batch) -> float:
    """The rate of all methods: an exact step without momentum turns a weight by about `ANGLE`.

    Exponentials cost more for large angles, and the first layers of an untrained deep network
    without shortcuts have gradients of 1e6 and more.
    """
    model = deepcopy(model)
    training_step(config, model, batch)()
    norms = [float(p.grad.norm()) for _, p in orthogonal_parameters(model) if p.grad is not None]
    return ANGLE / max(norms)


def prepare(
    config: TrainingBench, model: nn.Module, batch: Batch, lr: float, name: str
) -> tuple[Step, Row]:
    """The training step of one method on a copy of the model, and the mode and notes of its row."""
    model = deepcopy(model)
    row: Row = {"mode": "eager", "block_sizes": block_sizes(model, name), "note": None}
    step = training_step(config, model, batch, TRAINERS[name](model, lr))
    if config.mode == "graph":
        step, why = captured(step)
        row |= {"mode": "graph"} if why is None else {"note": f"not captured: {why}"}
    return step, row


def in_faster_layout(
    config: TrainingBench, model: nn.Module, batch: Batch, lr: float
) -> tuple[nn.Module, Batch, bool]:
    """The network in the memory layout in which SGD is faster: channels last, or not."""
    if config.network != "plainnet110":
        return model, batch, False
    images, labels = batch
    last = images.to(memory_format=torch.channels_last), labels
    moved: nn.Module = deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = {
        "first": prepare(config, model, batch, lr, BASE)[0],
        "last": prepare(config, moved, last, lr, BASE)[0],
    }
    times, failures = interleaved(steps, torch.device(config.device), rounds=3, seconds=VISIT)
    if failures:
        raise RunError(f"SGD itself cannot train this network: {next(iter(failures.values()))}.")
    if ratio(times, "last", "first") < 1:
        return moved, last, True
    return model, batch, False


def run(config: TrainingBench, progress: Progress) -> dict[str, Any]:
    """Measure every method.

    Returns:
        The contents of the JSON file.
    """
    task = progress.add_task(config.network, total=None)
    with _products(config.precision):
        model, batch = build(config)
        lr = learning_rate(config, model, batch)
        model, batch, channels_last = in_faster_layout(config, model, batch, lr)
        steps: dict[str, Step] = {}
        rows: dict[str, Row] = {}
        total = len(TRAINERS) * (config.rounds + 2)
        progress.update(task, total=total)
        for name in TRAINERS:
            try:
                steps[name], rows[name] = prepare(config, model, batch, lr, name)
            except Exception as error:  # a rival's failure is a result; the others continue
                rows[name] = {"mode": None, "block_sizes": [], "note": why_not(error)}
            progress.advance(task)
        times, failures = interleaved(
            steps,
            torch.device(config.device),
            rounds=config.rounds,
            seconds=VISIT,
            on_visit=lambda: progress.advance(task),
        )
        progress.update(task, completed=total)  # failed methods have no visits
    for name, row in rows.items():
        if name in failures:
            row |= {"mode": None, "note": f"failed: {failures[name]}"}
        row |= {"seconds": None, "overhead_percent": None, "times": []}
        if name in times:
            row |= {"seconds": median(times[name]) / 1e3, "times": [t / 1e3 for t in times[name]]}
            if BASE in times:
                row["overhead_percent"] = 100 * (ratio(times, name, BASE) - 1)
    depth, width = size(config)
    settings = asdict(config) | {"depth": depth, "width": width}
    return {
        "config": {key: value for key, value in settings.items() if key not in _DESTINATION},
        "parameters": sum(p.numel() for p in model.parameters()),
        "orthogonal_weights": len(orthogonal_parameters(model)),
        "channels_last": channels_last,
        "lr": lr,
        "environment": environment(config.device),
        "rows": [{"method": name, **row} for name, row in rows.items()],
    }


def main(config: TrainingBench) -> None:
    """Time one training step with FlowSGD, plain SGD, and others that keep weights orthogonal."""
    check(config)
    try:
        with bar() as progress:
            result = run(config, progress)
    except KeyboardInterrupt:
        show("interrupted before the last round was finished: nothing is written")
        raise SystemExit(130) from None
    paths = [json_path(config)]
    write_atomically(paths[0], json.dumps(result, indent=1) + "\n")
    if config.save:
        paths.append(recorded("training.csv"))
        append_rows(paths[-1], saved_rows(result))
    show(heading(result), table(result), *notes(result), written(paths))


def check(config: TrainingBench) -> None:
    """Refuse settings that cannot run, before anything is measured."""
    check_rounds(config.device, config.rounds, config.save)
    check_folder(config.out)
    if config.batch < 1:
        raise RunError(f"--batch must be at least 1: got {config.batch}.")
    if config.device != "cuda":
        for flag, value in (("--precision tf32", config.precision), ("--mode graph", config.mode)):
            if flag.endswith(value):
                raise RunError(f"{flag} needs --device cuda: got {config.device}. Leave it out.")


def json_path(config: TrainingBench) -> Path:
    """The JSON file of this run."""
    return config.out / f"training-{config.network}-{config.precision}-{config.mode}.json"


_DESTINATION = ("out", "save")  # settings on which the numbers do not depend


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """Context with products and convolutions in this precision, by cuDNN's fastest algorithms."""
    cudnn = torch.backends.cudnn
    matmul, conv = torch.backends.cuda.matmul, cudnn.conv  # type: ignore[attr-defined]
    before = matmul.fp32_precision, conv.fp32_precision, cudnn.benchmark
    switch = "tf32" if precision == "tf32" else "ieee"
    matmul.fp32_precision, conv.fp32_precision, cudnn.benchmark = switch, switch, True
    try:
        yield
    finally:
        matmul.fp32_precision, conv.fp32_precision, cudnn.benchmark = before
