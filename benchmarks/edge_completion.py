"""Edge completion against Algorithm 1: seconds to draw partitions from one h-regular law.

Both are given the same table of weights (d = 2000, s = 2, h = abs, Gaussian). In every round each
method draws the same number of partitions, one method after the other; the ratio is taken inside
the round.
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
    parser.add_argument("--draws", type=int, default=1000, help="partitions drawn by each method")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--save", action="store_true", help="append to benchmarks/data/results.csv")
    args = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    upper = torch.randn(args.d, args.d, generator=generator).triu(1)
    W = EdgeWeights.of(upper - upper.mT)
    methods = {name: HRegular(2, "abs", name) for name in ("edge", "reject-1")}
    for sampler in methods.values():
        sampler.sample(W, generator=generator)  # warm up; the row sums are cached from here on

    seconds: dict[str, list[float]] = {name: [] for name in methods}
    trials: dict[str, int] = dict.fromkeys(methods, 0)
    per_round = args.draws // args.rounds
    for _ in track(range(args.rounds), description=f"{per_round} draws a round"):
        for name, sampler in methods.items():
            start = time.perf_counter()
            for _ in range(per_round):
                trials[name] += sampler.sample(W, generator=generator).trials
            seconds[name].append(time.perf_counter() - start)

    ratios = [a / b for a, b in zip(seconds["reject-1"], seconds["edge"], strict=True)]
    out = Console()
    out.print(f"d = {args.d}, s = 2, {args.rounds} rounds of {per_round} draws")
    for name in methods:
        ms = 1e3 * median(seconds[name]) / per_round
        out.print(
            f"  {name:9s} {ms:9.3f} ms a draw, {trials[name] / (args.rounds * per_round):7.1f} "
            f"trials a draw, {sum(seconds[name]):8.2f} s in all"
        )
    out.print(f"  version I / edge completion: {median(ratios):.0f} times")
    if args.save:
        case = f"d={args.d} s=2 h=abs, {args.rounds * per_round} draws"
        record("edge_completion", case, "version I / edge completion", ratios)


if __name__ == "__main__":
    main()
