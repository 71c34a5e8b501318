"""`skewflow bench edge-completion`: edge completion against Algorithm 1."""

import time
from statistics import median

import torch
from rich.progress import track

from skewflow.samplers import HRegular
from skewflow.tournaments import EdgeWeights

from ..runs.threads import one_thread
from .command import append_result, check_rounds, show


def edge_completion(d: int = 2000, draws: int = 1000, rounds: int = 10, save: bool = False) -> None:
    """Time the draw of a partition by edge completion and by Algorithm 1, version I.

    Both draw from the same h-regular law (s = 2, h = abs) of one table of Gaussian weights, on one
    thread, in turn in every round. Version I makes about d trials for each draw, so it draws a
    tenth as often.

    Args:
        d: Number of rows.
        draws: Draws by edge completion, in all rounds together.
        rounds: Interleaved rounds; numbers are medians over them.
        save: Append the ratio to results/bench/results.csv of the repository.
    """
    check_rounds("cpu", rounds, save)
    generator = torch.Generator().manual_seed(0)
    upper = torch.randn(d, d, generator=generator).triu(1)
    W = EdgeWeights.of(upper - upper.mT)
    methods = {name: HRegular(2, "abs", name) for name in ("edge", "reject-1")}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    trials = dict.fromkeys(methods, 0)
    counts = {"edge": max(1, draws // rounds), "reject-1": max(1, draws // rounds // 10)}
    with one_thread():
        for sampler in methods.values():
            sampler.sample(W, generator=generator)  # the row sums are cached from here on
        for _ in track(range(rounds), description="rounds"):
            for name, sampler in methods.items():
                began = time.perf_counter()
                for _ in range(counts[name]):
                    trials[name] += sampler.sample(W, generator=generator).trials
                seconds[name].append((time.perf_counter() - began) / counts[name])
        ratios = [a / b for a, b in zip(seconds["reject-1"], seconds["edge"], strict=True)]
        if save:
            case = f"d={d} s=2 h=abs"
            append_result("edge_completion", case, "version I / edge completion", ratios)
    for name in methods:
        mean = trials[name] / (rounds * counts[name])
        show(f"{name:9s} {mean:7.1f} trials and {1e3 * median(seconds[name]):8.3f} ms a draw")
    show(f"version I / edge completion: {median(ratios):.0f} times")
