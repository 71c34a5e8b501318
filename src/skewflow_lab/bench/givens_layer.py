"""`skewflow bench givens-layer`: cost and accuracy of layers of Givens rotations."""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from skewflow.kernels.rotate_rounds.reference import rotate_rounds
from skewflow.nn import GivensLinear, ModReLU, OrthogonalLinear
from skewflow.optim import FlowAdam, split_parameters

from ..data import Images, default_images, load_digits_part, load_images
from ..measure.memory import peak_bytes
from ..measure.timing import Step, interleaved, ratio
from ..runs.environment import environment
from ..runs.files import RunError, recorded, write_json
from ..runs.seeds import spawn
from ..runs.threads import one_thread
from .command import check_rounds, show

CASES = ((512, 64, 128), (128, 127, 128))
"""Width, rounds, batch."""
PLAIN = "rounds, plain torch"
BATCH, SEEDS = 128, (0, 1, 2)


def givens_layer(
    rounds: int = 15, steps: int = 400, accuracy: bool = True, save: bool = False
) -> None:
    """Time `nn.GivensLinear`, and train it in a small classifier, beside other orthogonal layers.

    The costs are those of a forward and a backward pass in float32, without the step of the
    optimiser. The classifier has two square layers of the width of the image. Its images are those
    of MNIST, halved to 14 x 14 pixels, or scikit-learn's digits if MNIST is missing.

    Args:
        rounds: Interleaved rounds of the clock; numbers are medians over them.
        steps: Steps of a training; there is one for each of three seeds.
        accuracy: Train the classifier, too.
        save: Write results/bench/givens_layer.json of the repository.
    """
    check_rounds("cpu", rounds, save)
    found: dict[str, Any] = {"rounds": rounds, "steps": steps}
    found["costs"] = [row for case in CASES for row in _costs(*case, rounds)]
    found["accuracy"] = []
    if accuracy:
        train, test = _images()
        with one_thread():
            for name in track(CLASSIFIERS, description="classifiers"):
                row = _accuracy(name, train, test, steps)
                found["accuracy"].append(row)
                show(f"{name:28s} {row['parameters']:7d} {row['test accuracy']:7.2%}")
    if save:
        write_json(recorded("givens_layer.json"), {**found, "environment": environment("cpu")})


def _layers(d: int, n: int) -> dict[str, nn.Module]:
    """Square layers of one width, none with a bias."""
    layer = GivensLinear(d, n, bias=False)
    return {
        "GivensLinear": layer,
        PLAIN: layer,
        "OrthogonalLinear": OrthogonalLinear(d, d, bias=False),
        "torch, Householder": orthogonal(nn.Linear(d, d, bias=False), orthogonal_map="householder"),
    }


def _passes(name: str, layer: nn.Module, x: Tensor, up: Tensor) -> Step:
    inputs = [x, *layer.parameters()]
    if name == PLAIN:
        assert isinstance(layer, GivensLinear)
        pairs, angles = layer.pairs, layer.angles
        return lambda: torch.autograd.grad(rotate_rounds(x, pairs, angles), inputs, up)
    return lambda: torch.autograd.grad(layer(x), inputs, up)


def _costs(d: int, n: int, batch: int, rounds: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    x, up = (torch.randn(batch, d, generator=generator) for _ in range(2))
    x.requires_grad_()
    torch.manual_seed(0)
    layers = _layers(d, n)
    steps = {name: _passes(name, layer, x, up) for name, layer in layers.items()}
    memory = {name: peak_bytes(step) for name, step in steps.items()}
    times, failures = interleaved(steps, torch.device("cpu"), rounds=rounds)
    if failures:
        raise RunError(f"every layer must run: {failures}.")
    rows = []
    for name, values in times.items():
        row = {
            "width": d,
            "rounds": n,
            "batch": batch,
            "layer": name,
            "parameters": _size(layers[name]),
            "milliseconds": median(values),
            "time over plain": ratio(times, name, PLAIN),
            "extra bytes": memory[name],
            "memory over plain": memory[name] / memory[PLAIN],
        }
        rows.append(row)
        show(
            f"{d} wide, {n} rounds: {name:20s} {row['milliseconds']:9.3f} ms "
            f"({row['time over plain']:6.3f}) {memory[name] / 2**20:8.2f} MiB "
            f"({row['memory over plain']:6.3f}) {row['parameters']} parameters"
        )
    return rows


def _size(layer: nn.Module) -> int:
    return sum(p.numel() for p in layer.parameters())


def _images() -> tuple[Images, Images]:
    """Training and test images, each as a row of pixels."""
    if default_images() == "digits":
        return load_digits_part("train"), load_digits_part("test")
    train, test = load_images("mnist"), load_images("mnist", "test")
    return tuple(  # type: ignore[return-value]
        Images(part.name, nn.functional.avg_pool2d(part.pixels, 2), part.labels)
        for part in (train, test)
    )


CLASSIFIERS: dict[str, Callable[[int], nn.Module]] = {
    "GivensLinear, 4 rounds": lambda d: GivensLinear(d, 4),
    "GivensLinear, 16 rounds": lambda d: GivensLinear(d, 16),
    "GivensLinear, d - 1 rounds": lambda d: GivensLinear(d, d - 1),
    "OrthogonalLinear, FlowAdam": lambda d: OrthogonalLinear(d, d),
    "torch, Householder": lambda d: orthogonal(nn.Linear(d, d), orthogonal_map="householder"),
    "Linear": lambda d: nn.Linear(d, d),
    "no square layers": lambda d: nn.Identity(),
}


def _accuracy(name: str, train: Images, test: Images, steps: int) -> dict[str, Any]:
    """The fraction of test images that a classifier recognises, over all seeds."""
    found = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        d = train.pixels[0].numel()
        model = nn.Sequential(
            CLASSIFIERS[name](d), ModReLU(d), CLASSIFIERS[name](d), nn.ReLU(), nn.Linear(d, 10)
        )
        _train(model, train, steps, seed)
        with torch.no_grad():
            right = model(test.pixels.flatten(1)).argmax(1) == test.labels
        found.append(right.float().mean().item())
    return {
        "data": train.name,
        "layers": name,
        "parameters": _size(model),
        "test accuracy": sum(found) / len(found),
        "least": min(found),
        "largest": max(found),
    }


def _train(model: nn.Sequential, images: Images, steps: int, seed: int) -> None:
    marked = any(hasattr(layer, "orthogonal_names") for layer in model)
    weights, free = split_parameters(model) if marked else ([], list(model.named_parameters()))
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam([p for _, p in free], lr=3e-3),
        *(
            [FlowAdam(weights, lr=3e-3, block_size="dense", retraction="polar", seed=seed)]
            if weights
            else []
        ),
    ]
    schedules = [
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) for optimizer in optimizers
    ]
    for step in range(steps):
        x, y = images.batch(BATCH, spawn(seed, "batch", step))
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
