"""What factored steps cost: the step alone, a linear layer with it, and where dense ones win.

``python benchmarks/factored.py [cpu|cuda] [repeats]`` prints medians of interleaved repetitions:
forward + backward + step of a linear layer, with captured factors and with SGD; on CUDA the
microseconds that each kernel of a factored step takes; and for each shape the milliseconds of the
factored and of the dense step by rank (the dense one includes the product that forms the gradient)
and the largest r / k at which the factored one is cheaper.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from skewflow.geometry import haar
from skewflow.nn import OrthogonalLinear
from skewflow.optim import FlowSGD, capture_factors
from skewflow.optim._dense import dense_step
from skewflow.optim._factored import FactoredStep

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


def ranks(device: str, repeats: int) -> None:
    for d, k in SHAPES[device]:
        X = haar(d, k, generator=torch.Generator().manual_seed(0))[None].to(device)
        steps: dict[object, Callable[[], object]] = {}
        for fraction in FRACTIONS:
            r = max(1, round(fraction * k))
            A = torch.randn(1, d, r, device=device) / (d * r) ** 0.5
            B = torch.randn(1, k, r, device=device) / r**0.5
            Y, step = X.clone(), FactoredStep()
            steps["dense", fraction] = lambda A=A, B=B, X=X: dense_step(X, A @ B.mT, 0.1, "exp")
            steps["factored", fraction] = lambda A=A, B=B, Y=Y, step=step: step(Y, A, B, 0.1)
        cost = medians(steps, device, repeats, 5 if device == "cuda" else 1)
        wins = [f for f in FRACTIONS if cost["factored", f] < cost["dense", f]]
        row = ", ".join(
            f"r={round(f * k)}: {cost['factored', f]:.3f} / {cost['dense', f]:.3f}"
            for f in FRACTIONS
        )
        print(f"{d} x {k}: factored / dense in ms: {row}", flush=True)
        print(f"  cheaper up to r / k = {max(wins, default=0):.3g}", flush=True)


def layer(device: str, repeats: int) -> None:
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
    cost = medians(steps, device, repeats, 20)
    print(
        f"linear {size} x {size}, batch {batch}, forward + backward + step in ms: "
        f"SGD {cost['SGD']:.3f}, factored {cost['factored']:.3f}, "
        f"ratio {cost['factored'] / cost['SGD']:.2f}",
        flush=True,
    )


def kernels(d: int, k: int, r: int, calls: int = 20) -> None:
    X = haar(d, k, generator=torch.Generator().manual_seed(0))[None].cuda()
    A = torch.randn(1, d, r, device="cuda") / (d * r) ** 0.5
    B = torch.randn(1, k, r, device="cuda") / r**0.5
    step = FactoredStep()
    for known in (False, True):
        given = (X @ B, A.mT @ X) if known else ()
        step(X.clone(), A, B, 0.1, *given)
        Ys = [X.clone() for _ in range(calls)]  # V is checked against X
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for Y in Ys:
                step(Y, A, B, 0.1, *given)
            torch.cuda.synchronize()
        rows = [(e.key, e.self_device_time_total / calls) for e in profile.key_averages()]
        total = sum(time for _, time in rows)
        print(
            f"{d} x {k}, r = {r}, {'known products, ' if known else ''}{total:.0f} us on the device"
        )
        for name, time_ in sorted(rows, key=lambda row: -row[1])[:12]:
            print(f"  {time_:7.1f}  {name[:80]}", flush=True)


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    layer(device, repeats)
    if device == "cuda":
        kernels(5120, 1024, 128)
        kernels(4096, 4096, 128)
    ranks(device, repeats)
