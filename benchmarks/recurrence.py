"""The recurrence by hand against the plain loop: milliseconds forward and backward, modReLU.

Float32 on one CPU thread; both take turns in every round.
"""

import argparse
from collections.abc import Callable
from statistics import median

import torch
from record import record
from rich.console import Console
from rich.progress import track
from torch import Tensor

from skewflow.geometry import haar
from skewflow.kernels.recurrence import recurrence
from skewflow.kernels.recurrence.by_hand import recurrence_by_hand
from skewflow_lab.measure.timing import interleaved

CASES = ((200, 128, 128), (784, 16, 170), (1000, 1, 64))
"""Length, batch, d."""


def training_step(
    run: Callable[..., Tensor], length: int, batch: int, d: int
) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    u, up = (torch.randn(length, batch, d, generator=generator) for _ in range(2))
    W, h_0, bias = haar(d, generator=generator), torch.zeros(batch, d), torch.full((d,), -0.01)
    inputs = [value.requires_grad_() for value in (u, W, bias)]
    return lambda: torch.autograd.grad(run(u, h_0, W, bias), inputs, up)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="append to benchmarks/data/results.csv")
    args = parser.parse_args()

    torch.set_num_threads(1)
    methods = {"plain loop": recurrence, "by hand": recurrence_by_hand}
    out = Console()
    for case in track(CASES, description="cases", console=out):
        steps = {name: training_step(run, *case) for name, run in methods.items()}
        times, failures = interleaved(steps, torch.device("cpu"), rounds=args.rounds)
        if failures:
            raise RuntimeError(f"could not be timed: {failures}")
        length, batch, d = case
        label = f"length={length} batch={batch} d={d}"
        for name, values in times.items():
            out.print(f"{label:28s} {name:10s} {median(values):7.1f} ms")
            if args.save:
                record("recurrence", label, f"ms, {name}", values)


if __name__ == "__main__":
    main()
