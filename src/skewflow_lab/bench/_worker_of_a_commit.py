"""A process of `skewflow bench two-commits`: it takes steps of one source tree.

It imports only `skewflow`, from the tree that PYTHONPATH names, so that it runs at any commit.
"""

import json
import sys
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import torch
from torch import nn


def make(case: dict[str, Any], device: str) -> Callable[[], object]:
    """The step of an optimiser on matrices or convolutions."""
    from skewflow import optim
    from skewflow.nn import orthogonal_

    generator = torch.Generator().manual_seed(0)
    params = [
        nn.Parameter(orthogonal_(torch.empty(shape), generator=generator).to(device))
        for shape in case["shapes"]
    ]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(device) / p.shape[0]
    step: Callable[[], object] = getattr(optim, case["optimizer"])(
        params, lr=1e-3, **case["options"]
    ).step
    return step


def timed(step: Callable[[], object], count: int, device: str) -> float:
    """Seconds of `count` steps; on a CPU those of this process, which others cannot delay."""
    cuda = device == "cuda"
    clock = perf_counter if cuda else process_time
    if cuda:
        torch.cuda.synchronize()
    start = clock()
    for _ in range(count):
        step()
    if cuda:
        torch.cuda.synchronize()
    return clock() - start


def main() -> None:
    """Read cases and counts from stdin; write the seconds of each."""
    device = sys.argv[1]
    torch.set_num_threads(int(sys.argv[2]))
    known: object = None
    for line in sys.stdin:
        case, count = json.loads(line)
        if known != case:
            known, step = case, make(case, device)
            timed(step, 5, device)
        print(json.dumps(timed(step, count, device)), flush=True)


if __name__ == "__main__":
    main()
