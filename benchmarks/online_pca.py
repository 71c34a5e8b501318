"""Seconds until online PCA is solved to a gap, beside pogo-torch with products in TF32.

``python benchmarks/online_pca.py [--device cuda] [--save]`` takes Landing's 15000 samples of 5000
features in batches of 128. Each method searches its learning rate, with and without momentum, for
the least time to the gap; then its best setting runs some times, in turn with the others'. FlowSGD
runs with the block size "auto", and with natural steps, which have no momentum. Products
may use TF32: those of gradients and of POGO's steps do, and in exact steps of FlowSGD those of the
direction; those of factored ones are as exact as float32's. A clock stands still while a loss is
evaluated. ``--save`` writes ``benchmarks/data/online_pca.json``.
"""

import argparse
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from skewflow_lab.bench.quality.methods import METHODS
from skewflow_lab.bench.quality.problem import Problem
from skewflow_lab.bench.quality.race import Racer, Setting, begin, climb, warm_up
from skewflow_lab.bench.quality.standing import reached
from skewflow_lab.bench.quality.suite import SUITE
from skewflow_lab.runs.environment import check_device, environment
from skewflow_lab.runs.files import write_json

DATA = Path(__file__).parent / "data" / "online_pca.json"
GAPS = {"online-pca-4000": 0.05, "online-pca-1000": 0.03}
"""What is to be reached, relative to the gap of the start."""
LONGEST = 3.0
"""Seconds after which a run is given up."""
LOOKS = 60
"""Evaluations of a run of that length, evenly spaced on a logarithmic scale from 1/300 of it on."""
NAMES = ("auto", "auto-natural", "pogo")
"""Who runs."""


@contextmanager
def coarse_products() -> Iterator[None]:
    """Products of float32 matrices in TF32 where somebody does not ask for more."""
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def seconds_to(
    problem: Problem, name: str, setting: Setting, gap: float, longest: float
) -> tuple[float, Racer | None]:
    """Until the gap; `longest` and the last gap if that is not reached, infinity if it was lost."""
    racer = begin(problem, METHODS[name], setting)
    if isinstance(racer, str):
        return math.inf, None
    optimum = problem.optimum
    assert optimum is not None
    scale = racer.curve[0]["loss"] - optimum
    points = [(0.0, 0.0, 1.0)]
    for n in range(LOOKS):
        with coarse_products():
            racer.advance(LONGEST * 300 ** (n / (LOOKS - 1) - 1))
        if racer.failure is not None or racer.away is not None:
            return math.inf, None
        last = racer.curve[-1]
        points.append((last["seconds"], last["steps"], (last["loss"] - optimum) / scale))
        if (found := reached(points, gap)) is not None:
            return found[0], racer
        if last["seconds"] > longest:
            break
    return longest + points[-1][2], None


def search(problem: Problem, name: str, gap: float) -> tuple[Setting, float]:
    """The setting that is first at the gap; slower ones are given up at twice its time."""
    best = Setting(0, 0.0), math.inf
    for momentum in (0.0, 0.9) if METHODS[name].momentum else (0.0,):
        with coarse_products():
            warm_up(problem, METHODS[name], Setting(-4, momentum))

        def score(exponent: float, momentum: float = momentum) -> float:
            nonlocal best
            setting = Setting(exponent, momentum)
            taken, _ = seconds_to(problem, name, setting, gap, min(LONGEST, 2 * best[1]))
            best = min(best, (setting, taken), key=lambda each: each[1])
            return taken

        found = climb(score)
        top = min(found, key=lambda j: (found[j], j))
        for step in (-0.5, 0.5):
            score(top + step)
    return best


def measure(name: str, gap: float, device: str, rounds: int) -> dict[str, Any]:
    """One problem."""
    problem = SUITE[name].make("full" if device == "cuda" else "tiny", device)
    chosen = {method: search(problem, method, gap)[0] for method in NAMES}
    times: dict[str, list[float]] = {method: [] for method in NAMES}  # infinite if not reached
    row: dict[str, Any] = {"problem": name, "shape": list(problem.shape), "gap": gap}
    for _ in range(rounds):
        for method, setting in chosen.items():
            taken, racer = seconds_to(problem, method, setting, gap, LONGEST)
            times[method].append(taken if racer is not None else math.inf)
            if racer is not None:
                row[method] = {
                    "lr": setting.lr(METHODS[method], problem),
                    "momentum": setting.momentum,
                    "steps": racer.steps,
                    "error": racer.curve[-1]["error"],
                    "seconds": times[method],
                }
    middle = {method: median(each) for method, each in times.items()}
    missed = [method for method, seconds in middle.items() if not math.isfinite(seconds)]
    if missed:
        raise RuntimeError(f"{' and '.join(missed)} must come to {gap} in {LONGEST} s on {name}.")
    ours = [method for method in NAMES if METHODS[method].ours]
    return row | {f"pogo / {method}": middle["pogo"] / middle[method] for method in ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: tiny sizes")
    parser.add_argument("--problems", nargs="+", choices=tuple(GAPS), default=list(GAPS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help=f"write {DATA.name}")
    args = parser.parse_args()
    check_device(args.device)
    rows = []
    for name in args.problems:
        rows.append(measure(name, GAPS[name], args.device, args.rounds))
        print(json.dumps(rows[-1]), flush=True)
    if args.save:
        write_json(DATA, {"environment": environment(args.device), "rows": rows})


if __name__ == "__main__":
    main()
