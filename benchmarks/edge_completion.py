"""Edge completion against Algorithm 1: seconds to draw partitions from one h-regular law.

Both are given the same table of weights (d = 2000, s = 2, h = abs, Gaussian). Edge completion draws
1,000 partitions; version I needs about 2,000 trials for each of its own, so it draws a tenth as
many. They take turns in every round, and the ratio of the times for 1,000 draws is taken inside the
round. One thread: the operations are small.
"""

import argparse
import time
from statistics import median

import torch
from record import record
from rich.console import Console
from rich.progress import track

from skewflow.samplers import HRegular
from skewflow.tournaments import EdgeWeights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--d", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=1000, help="by edge completion")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--save", action="store_true", help="append to benchmarks/data/results.csv")
    args = parser.parse_args()

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    upper = torch.randn(args.d, args.d, generator=generator).triu(1)
    W = EdgeWeights.of(upper - upper.mT)
    methods = {name: HRegular(2, "abs", name) for name in ("edge", "reject-1")}
    for sampler in methods.values():
        sampler.sample(W, generator=generator)  # warm up; the row sums are cached from here on

    seconds: dict[str, list[float]] = {name: [] for name in methods}
    trials: dict[str, int] = dict.fromkeys(methods, 0)
    draws = {"edge": args.draws // args.rounds, "reject-1": args.draws // args.rounds // 10}
    for _ in track(range(args.rounds), description="rounds"):
        for name, sampler in methods.items():
            start = time.perf_counter()
            for _ in range(draws[name]):
                trials[name] += sampler.sample(W, generator=generator).trials
            seconds[name].append((time.perf_counter() - start) / draws[name])  # a draw

    ratios = [a / b for a, b in zip(seconds["reject-1"], seconds["edge"], strict=True)]
    out = Console()
    out.print(f"d = {args.d}, s = 2, h = abs, {args.rounds} rounds")
    for name in methods:
        count = args.rounds * draws[name]
        ms = 1e3 * median(seconds[name])
        out.print(f"  {name:9s} {trials[name] / count:7.1f} trials and {ms:8.3f} ms a draw")
    out.print(f"  version I / edge completion: {median(ratios):.0f} times")
    if args.save:
        case = f"d={args.d} s=2 h=abs"
        record("edge_completion", case, "version I / edge completion", ratios)


if __name__ == "__main__":
    main()
