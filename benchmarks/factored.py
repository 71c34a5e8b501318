"""Where the factored step ends to be cheaper than the dense one: milliseconds by rank.

``python benchmarks/factored.py [cpu|cuda] [repeats]`` prints, for each shape, the dense step, the
factored step at growing rank, and the largest r / k at which the factored one is cheaper. The dense
step includes the product that forms the gradient. Medians of interleaved repetitions.
"""

import sys
import time
from statistics import median

import torch

from skewflow.geometry import haar
from skewflow.optim._dense import dense_step
from skewflow.optim._factored import factored_step_

SHAPES = {
    "cpu": [(256, 256), (512, 512), (1024, 1024), (1024, 256), (2048, 128)],
    "cuda": [(512, 512), (1024, 1024), (4096, 4096), (5120, 1024), (5120, 128), (8192, 8192)],
}
FRACTIONS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)


def milliseconds(step, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def main(device: str = "cpu", repeats: int = 7) -> None:
    for d, k in SHAPES[device]:
        X = haar(d, k, generator=torch.Generator().manual_seed(0))[None].to(device)
        steps = {}
        for fraction in FRACTIONS:
            r = max(1, round(fraction * k))
            A = torch.randn(1, d, r, device=device) / (d * r) ** 0.5
            B = torch.randn(1, k, r, device=device) / r**0.5
            Y = X.clone()
            steps["dense", fraction] = lambda A=A, B=B, X=X: dense_step(X, A @ B.mT, 0.1, "exp")
            steps["factored", fraction] = lambda A=A, B=B, Y=Y: factored_step_(Y, A, B, 0.1)
        times = {name: [] for name in steps}
        for _ in range(repeats + 1):
            for name, step in steps.items():
                times[name].append(milliseconds(step, device))
        cost = {name: median(each[1:]) for name, each in times.items()}
        wins = [f for f in FRACTIONS if cost["factored", f] < cost["dense", f]]
        row = ", ".join(
            f"r={round(f * k)}: {cost['factored', f]:.2f} / {cost['dense', f]:.2f}"
            for f in FRACTIONS
        )
        print(f"{d} x {k}: factored / dense in ms: {row}", flush=True)
        print(f"  cheaper up to r / k = {max(wins, default=0):.3g}", flush=True)


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    main(device, int(sys.argv[2]) if len(sys.argv) > 2 else 7)
