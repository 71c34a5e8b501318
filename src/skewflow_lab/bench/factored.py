"""`skewflow bench factored`: the cost of factored steps, and where dense steps are cheaper."""

import time
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from skewflow.geometry import haar
from skewflow.kernels.exact_step import exact_step
from skewflow.kernels.rotate_factored.dispatch import FactoredStep
from skewflow.nn import OrthogonalLinear
from skewflow.optim import FlowSGD, capture_factors

from ..measure.capture import captured
from ..measure.timing import Step
from ..runs.environment import environment
from ..runs.files import recorded, write_json
from .command import DEVICE, Device, check_rounds, show

Row = dict[str, Any]
Name = TypeVar("Name")

SHAPES = {
    "cpu": [(256, 256), (512, 512), (1024, 1024), (1024, 256), (2048, 128)],
    "cuda": [(1024, 1024), (4096, 4096), (5120, 1024), (5120, 256)],
}
FRACTIONS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2)
"""Ranks of the factors, as fractions of k."""
LAYERS = {"cpu": (512, 16), "cuda": (4096, 128)}
"""Size of the layer and batch."""


def factored(device: Device = DEVICE, rounds: int = 7, save: bool = False) -> None:
    """Time factored steps: with a linear layer, against the dense step, and kernel by kernel.

    It first times forward pass, backward pass and step of a linear layer, with captured factors and
    with SGD, on CUDA also as CUDA graphs. On CUDA it then times each kernel of a factored step.
    Last it times, for each shape and rank, the factored step and the dense step with the product
    that forms the gradient, and prints the largest r / k at which the factored step is cheaper.

    Args:
        device: Device of the weights.
        rounds: Interleaved rounds; numbers are medians over them.
        save: Write results/bench/factored_DEVICE.json of the repository.
    """
    check_rounds(device, rounds, save)
    measured: Row = {"environment": environment(device), "layer": _layer(device, rounds)}
    if device == "cuda":
        measured["steps"] = [_kernels(5120, 1024, 128), _kernels(4096, 4096, 128)]
    measured["ranks"] = _ranks(device, rounds)
    if save:
        write_json(recorded(f"factored_{device}.json"), measured)


def _milliseconds(step: Step, device: str, calls: int) -> float:
    """Milliseconds of a call in a sequence of calls without synchronisation."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / calls


def _medians(
    steps: dict[Name, Step], device: str, repeats: int, calls: int = 1
) -> dict[Name, float]:
    """Milliseconds of each step: the median over interleaved repetitions."""
    times: dict[Name, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, step in steps.items():
            times[name].append(_milliseconds(step, device, calls))
    return {name: median(each[1:]) for name, each in times.items()}


def _ranks(device: str, repeats: int) -> list[Row]:
    """Times of the factored and the dense step for each shape and rank."""
    rows = []
    for d, k in SHAPES[device]:
        X = haar(d, k, generator=torch.Generator().manual_seed(0))[None].to(device)
        steps: dict[tuple[str, float], Step] = {}
        for fraction in FRACTIONS:
            r = max(1, round(fraction * k))
            A = torch.randn(1, d, r, device=device) / (d * r) ** 0.5
            B = torch.randn(1, k, r, device=device) / r**0.5
            steps["dense", fraction] = partial(_dense, X, A, B)
            steps["factored", fraction] = partial(FactoredStep(), X.clone(), A, B, 0.1)
        cost = _medians(steps, device, repeats, 5 if device == "cuda" else 1)
        wins = [f for f in FRACTIONS if cost["factored", f] < cost["dense", f]]
        for f in FRACTIONS:
            ms = {name: cost[name, f] for name in ("factored", "dense")}
            rows.append({"shape": [d, k], "rank": round(f * k), "milliseconds": ms})
        row = ", ".join(
            f"r={round(f * k)}: {cost['factored', f]:.3f} / {cost['dense', f]:.3f}"
            for f in FRACTIONS
        )
        show(f"{d} x {k}: factored / dense in ms: {row}")
        show(f"  cheaper up to r / k = {max(wins, default=0):.3g}")
    return rows


def _layer(device: str, repeats: int) -> list[Row]:
    """Times of passes and step of a linear layer, with captured factors and with SGD."""
    size, batch = LAYERS[device]
    x = torch.randn(batch, size, device=device, requires_grad=True)
    g = torch.randn(batch, size, device=device) / batch
    steps: dict[str, Step] = {}
    for name in ("SGD", "factored"):
        linear = OrthogonalLinear(size, size, bias=False, device=device)
        if name == "SGD":
            optimizer: torch.optim.Optimizer = torch.optim.SGD(
                linear.parameters(), lr=1e-3, fused=True
            )
        else:
            capture_factors(linear)
            optimizer = FlowSGD(linear.parameters(), lr=1e-3, block_size="dense")

        steps[name] = partial(_train, linear, optimizer, x, g)
    rows = []
    for mode in ("eager", "graph") if device == "cuda" else ("eager",):
        if mode == "graph":
            for name in list(steps):
                steps[name], why = captured(steps[name])
                if why is not None:
                    show(f"{name} is not captured: {why}")
        ms = _medians(steps, device, repeats, 20)
        row: Row = {"linear": size, "batch": batch, "mode": mode, "milliseconds": ms}
        rows.append(row | {"ratio": ms["factored"] / ms["SGD"]})
        show(f"forward + backward + step: {rows[-1]}")
    return rows


def _dense(X: Tensor, A: Tensor, B: Tensor) -> None:
    exact_step(X, A @ B.mT, 0.1, "exp")


def _train(linear: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, g: Tensor) -> None:
    x.grad = None
    linear(x).backward(g)
    optimizer.step()
    optimizer.zero_grad()


def _kernels(d: int, k: int, r: int, calls: int = 20) -> Row:
    """Microseconds of each kernel of a factored step."""
    X = haar(d, k, generator=torch.Generator().manual_seed(0))[None].cuda()
    A = torch.randn(1, d, r, device="cuda") / (d * r) ** 0.5
    B = torch.randn(1, k, r, device="cuda") / r**0.5
    step = FactoredStep()
    found: Row = {"shape": [d, k], "rank": r}
    for known in (False, True):
        given = (X @ B, A.mT @ X) if known else ()
        Ys = [X.clone() for _ in range(calls)]  # V is checked against X
        turns = iter([Y.clone() for Y in Ys for _ in range(3)])
        for _ in range(calls):
            step(next(turns), A, B, 0.1, *given)
        wall = _milliseconds(lambda: step(next(turns), A, B, 0.1, *given), "cuda", calls)  # noqa: B023
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for Y in Ys:
                step(Y, A, B, 0.1, *given)
            torch.cuda.synchronize()
        rows = [(e.key, e.self_device_time_total / calls) for e in profile.key_averages()]
        total = sum(time for _, time in rows)
        kind = "known products" if known else "factors alone"
        found[kind] = {"microseconds on the device": total, "of a step": 1e3 * wall}
        show(f"{d} x {k}, r = {r}, {kind}: {found[kind]}")
        for name, time_ in sorted(rows, key=lambda row: -row[1])[:12]:
            show(f"  {time_:7.1f}  {name[:80]}")
    return found
