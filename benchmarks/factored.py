"""What factored steps cost: the step alone, a linear layer with it, and where dense ones win.

``python benchmarks/factored.py [cpu|cuda] [repeats] [--save]`` prints medians of interleaved
repetitions: forward + backward + step of a linear layer, with captured factors and with SGD, on
CUDA also as CUDA graphs; there the microseconds that each kernel of a factored step takes; and for
each shape the milliseconds of the factored and of the dense step by rank (the dense one includes
the product that forms the gradient) and the largest r / k at which the factored one is cheaper.
``--save`` writes ``benchmarks/data/factored_DEVICE.json``, with the machine and the versions.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from skewflow.geometry import haar
from skewflow.kernels.exact_step import exact_step
from skewflow.kernels.rotate_factored.dispatch import FactoredStep
from skewflow.nn import OrthogonalLinear
from skewflow.optim import FlowSGD, capture_factors
from skewflow_lab.measure.capture import captured
from skewflow_lab.runs.environment import environment
from skewflow_lab.runs.files import write_json

Row = dict[str, Any]

SHAPES = {
    "cpu": [(256, 256), (512, 512), (1024, 1024), (1024, 256), (2048, 128)],
    "cuda": [(1024, 1024), (4096, 4096), (5120, 1024), (5120, 256)],
}
FRACTIONS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2)
LAYERS = {"cpu": (512, 16), "cuda": (4096, 128)}
"""Size of the layer and batch."""


def milliseconds(step: Callable[[], object], device: str, calls: int) -> float:
    """Of one of so many calls, which do not wait for each other."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / calls


def medians(
    steps: dict[object, Callable[[], object]], device: str, repeats: int, calls: int = 1
) -> dict[object, float]:
    times: dict[object, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, step in steps.items():
            times[name].append(milliseconds(step, device, calls))
    return {name: median(each[1:]) for name, each in times.items()}


def ranks(device: str, repeats: int) -> list[Row]:
    rows = []
    for d, k in SHAPES[device]:
        X = haar(d, k, generator=torch.Generator().manual_seed(0))[None].to(device)
        steps: dict[object, Callable[[], object]] = {}
        for fraction in FRACTIONS:
            r = max(1, round(fraction * k))
            A = torch.randn(1, d, r, device=device) / (d * r) ** 0.5
            B = torch.randn(1, k, r, device=device) / r**0.5
            Y, step = X.clone(), FactoredStep()
            steps["dense", fraction] = lambda A=A, B=B, X=X: exact_step(X, A @ B.mT, 0.1, "exp")
            steps["factored", fraction] = lambda A=A, B=B, Y=Y, step=step: step(Y, A, B, 0.1)
        cost = medians(steps, device, repeats, 5 if device == "cuda" else 1)
        wins = [f for f in FRACTIONS if cost["factored", f] < cost["dense", f]]
        for f in FRACTIONS:
            ms = {name: cost[name, f] for name in ("factored", "dense")}
            rows.append({"shape": [d, k], "rank": round(f * k), "milliseconds": ms})
        row = ", ".join(
            f"r={round(f * k)}: {cost['factored', f]:.3f} / {cost['dense', f]:.3f}"
            for f in FRACTIONS
        )
        print(f"{d} x {k}: factored / dense in ms: {row}", flush=True)
        print(f"  cheaper up to r / k = {max(wins, default=0):.3g}", flush=True)
    return rows


def layer(device: str, repeats: int) -> list[Row]:
    size, batch = LAYERS[device]
    x = torch.randn(batch, size, device=device, requires_grad=True)
    g = torch.randn(batch, size, device=device) / batch
    steps: dict[object, Callable[[], object]] = {}
    for name in ("SGD", "factored"):
        linear = OrthogonalLinear(size, size, bias=False, device=device)
        if name == "SGD":
            optimizer: torch.optim.Optimizer = torch.optim.SGD(
                linear.parameters(), lr=1e-3, fused=True
            )
        else:
            capture_factors(linear)
            optimizer = FlowSGD(linear.parameters(), lr=1e-3, block_size="dense")

        def train(linear=linear, optimizer=optimizer) -> None:
            x.grad = None
            linear(x).backward(g)
            optimizer.step()
            optimizer.zero_grad()

        steps[name] = train
    rows = []
    for mode in ("eager", "graph") if device == "cuda" else ("eager",):
        if mode == "graph":
            for name in list(steps):
                steps[name], why = captured(steps[name])
                if why is not None:
                    print(f"{name} is not captured: {why}", flush=True)
        cost = medians(steps, device, repeats, 20)
        ms = {str(name): value for name, value in cost.items()}
        row: Row = {"linear": size, "batch": batch, "mode": mode, "milliseconds": ms}
        rows.append(row | {"ratio": ms["factored"] / ms["SGD"]})
        print(f"forward + backward + step: {rows[-1]}", flush=True)
    return rows


def kernels(d: int, k: int, r: int, calls: int = 20) -> Row:
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
        wall = milliseconds(lambda: step(next(turns), A, B, 0.1, *given), "cuda", calls)  # noqa: B023
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for Y in Ys:
                step(Y, A, B, 0.1, *given)
            torch.cuda.synchronize()
        rows = [(e.key, e.self_device_time_total / calls) for e in profile.key_averages()]
        total = sum(time for _, time in rows)
        kind = "known products" if known else "factors alone"
        found[kind] = {"microseconds on the device": total, "of a step": 1e3 * wall}
        print(f"{d} x {k}, r = {r}, {kind}: {found[kind]}")
        for name, time_ in sorted(rows, key=lambda row: -row[1])[:12]:
            print(f"  {time_:7.1f}  {name[:80]}", flush=True)
    return found


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "--save"]
    device = given[0] if given else "cpu"
    repeats = int(given[1]) if len(given) > 1 else 7
    measured: Row = {"environment": environment(device), "layer": layer(device, repeats)}
    if device == "cuda":
        measured["steps"] = [kernels(5120, 1024, 128), kernels(4096, 4096, 128)]
    measured["ranks"] = ranks(device, repeats)
    if "--save" in sys.argv:
        write_json(Path(__file__).parent / "data" / f"factored_{device}.json", measured)
