"""`skewflow bench conv-norms`: which convolutions are contractions, and which are orthogonal."""

from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from statistics import median
from typing import Any

import torch
from jaxtyping import Float
from rich.progress import track
from torch import Tensor, nn

from skewflow.nn import OrthogonalConv2d
from skewflow.optim import FlowAdam, split_parameters

from ..data import load_digits_part
from ..measure.timing import interleaved
from ..runs.environment import environment, version
from ..runs.files import RunError, recorded, write_json
from ..runs.seeds import spawn
from ..runs.threads import one_thread
from .command import ABSENT, check_rounds, show

CHANNELS = 8
"""Channels of the input; with a stride the output has four times as many."""
WINDOWS = ((3, 1), (3, 2), (2, 2))
"""Kernel size and stride; in the last case patches do not overlap."""
PADDINGS = ("circular", "zeros")
SIZES = (8, 16, 32)
"""Sides of the images."""
ITERATIONS = 300
"""Steps of a power iteration."""
BATCH = 32
OURS, PEER, PLAIN = "OrthogonalConv2d", "orthogonium", "torch"
"""The paper's flattening, a true orthogonal convolution, and a free one."""


def conv_norms(rounds: int = 5, steps: int = 200, save: bool = False) -> None:
    """Measure the Lipschitz constants of convolutions from image to image.

    The paper makes a flattened kernel orthogonal, which is the map from one patch; orthogonium
    makes the convolution orthogonal. The constant is the largest singular value of the operator on
    images in float64, found by a power iteration; the least singular value is that for images of
    8 x 8 pixels. Each kernel is measured at initialisation and after the training of a small
    classifier of scikit-learn's digits. Times are those of a forward and a backward pass of 32
    images of 32 x 32 pixels.

    Args:
        rounds: Interleaved rounds of the clock; times are medians over them.
        steps: Steps of a training.
        save: Write results/bench/conv_norms.json of the repository.
    """
    check_rounds("cpu", rounds, save)
    if find_spec("orthogonium") is None:
        if save:
            raise RunError(f"--save needs the rival: orthogonium is {ABSENT}.")
        show(f"{PEER}: {ABSENT}")
    rows = []
    cases = [*product(WINDOWS, PADDINGS)]
    with one_thread():
        for (kernel, stride), padding in track(cases, description="convolutions"):
            if kernel == stride and padding != "zeros":
                continue  # there is nothing to pad
            rows += _case(kernel, stride, padding, rounds, steps)
    if save:
        machine = {**environment("cpu"), "orthogonium": version("orthogonium")}
        found = {"sizes": SIZES, "channels": CHANNELS, "steps": steps, "rows": rows}
        write_json(recorded("conv_norms.json"), {**found, "environment": machine})


def _case(kernel: int, stride: int, padding: str, rounds: int, steps: int) -> list[dict[str, Any]]:
    """A row for each layer."""
    layers = _layers(kernel, stride, padding)
    up = torch.randn(BATCH, CHANNELS, SIZES[-1], SIZES[-1], generator=spawn(0, "images"))
    up.requires_grad_()
    passes = {name: _passes(layer, up) for name, layer in layers.items()}
    times, failures = interleaved(passes, torch.device("cpu"), rounds=rounds)
    if failures:
        raise RunError(f"every layer must run: {failures}.")
    rows = []
    for name, layer in layers.items():
        start = [largest(layer, n) for n in SIZES]
        least = spectrum(layer, SIZES[0])[-1].item()
        accuracy = _train(layer, steps)
        trained = [largest(layer, n) for n in SIZES]
        rows.append(
            {
                "layer": name,
                "kernel": kernel,
                "stride": stride,
                "padding": padding,
                **{f"constant, {n} pixels": value for n, value in zip(SIZES, start, strict=True)},
                **{f"trained, {n} pixels": v for n, v in zip(SIZES, trained, strict=True)},
                "least": least,
                "least, trained": spectrum(layer, SIZES[0])[-1].item(),
                "test accuracy": accuracy,
                "milliseconds": median(times[name]),
            }
        )
        show(
            f"{kernel} x {kernel}, stride {stride}, {padding:8s}: {name:16s} "
            f"{min(start):.3f} to {max(start):.3f}, trained {min(trained):.3f} to "
            f"{max(trained):.3f}, least {least:.3f}, {rows[-1]['milliseconds']:.2f} ms"
        )
    return rows


def _layers(kernel: int, stride: int, padding: str) -> dict[str, nn.Conv2d]:
    """The convolutions, none with a bias."""
    arguments: dict[str, Any] = {
        "in_channels": CHANNELS,
        "out_channels": CHANNELS * stride**2,
        "kernel_size": kernel,
        "stride": stride,
        "padding": 0 if kernel == stride else 1,
        "padding_mode": padding,
        "bias": False,
    }
    kinds: dict[str, Callable[..., nn.Conv2d]] = {OURS: OrthogonalConv2d, PLAIN: nn.Conv2d}
    if find_spec("orthogonium") is not None:
        from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

        kinds[PEER] = AdaptiveOrthoConv2d
    found = {}
    with torch.random.fork_rng(devices=[]):
        for name, kind in kinds.items():
            torch.manual_seed(0)
            found[name] = kind(**arguments)
    return found


def _passes(layer: nn.Conv2d, x: Tensor) -> Callable[[], object]:
    inputs = [x, *(p for p in layer.parameters() if p.requires_grad)]
    return lambda: torch.autograd.grad(layer(x).sum(), inputs)


def _operator(layer: nn.Conv2d) -> nn.Conv2d:
    """The same convolution in float64, with the kernel that the layer has."""
    plain = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,  # type: ignore[arg-type]
        layer.stride,  # type: ignore[arg-type]
        layer.padding,  # type: ignore[arg-type]
        bias=False,
        padding_mode=layer.padding_mode,
        dtype=torch.float64,
    )
    with torch.no_grad():
        plain.weight.copy_(layer.weight)
    return plain.requires_grad_(False)


def largest(layer: nn.Conv2d, size: int) -> float:
    """The largest singular value on images of a size, from below, by a power iteration."""
    operator = _operator(layer)
    shape = 1, layer.in_channels, size, size
    x = torch.randn(shape, generator=spawn(0, "power", size), dtype=torch.float64)
    value = 0.0
    for _ in range(ITERATIONS):
        x = (x / x.norm()).requires_grad_()
        y = operator(x)
        value = float(y.detach().norm())
        (x,) = torch.autograd.grad(y, x, y.detach())
    return value


@torch.no_grad()
def spectrum(layer: nn.Conv2d, size: int) -> Float[Tensor, " n"]:
    """All singular values on images of a size, largest first."""
    one = torch.eye(layer.in_channels * size**2, dtype=torch.float64)
    images = _operator(layer)(one.view(-1, layer.in_channels, size, size))
    return torch.linalg.svdvals(images.flatten(1))


def _train(layer: nn.Conv2d, steps: int) -> float:
    """Train the layer between a free layer and a readout; returns the test accuracy."""
    train, test = load_digits_part("train"), load_digits_part("test")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stem, head = nn.Conv2d(1, CHANNELS, 3, padding=1), nn.Linear(layer.out_channels, 10)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), stem, nn.ReLU(), layer, nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), head,
    )  # fmt: skip
    weights: list[tuple[str, nn.Parameter]] = []
    free = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    if isinstance(layer, OrthogonalConv2d):
        weights, free = split_parameters(net)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam([p for _, p in free], lr=1e-2),
        *([FlowAdam(weights, lr=1e-2, block_size="dense", retraction="polar")] if weights else []),
    ]
    for step in range(steps):
        x, y = train.batch(64, spawn(0, "batch", step))
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(x.view(-1, 8, 8)), y)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    net.eval()
    with torch.no_grad():
        right = net(test.pixels).argmax(1) == test.labels
    return float(right.float().mean())
