"""`skewflow bench recurrence`: the hand-written gradient of the recurrence against autograd."""

from collections.abc import Callable
from statistics import median

import torch
from rich.progress import track
from torch import Tensor

from skewflow.geometry import haar
from skewflow.kernels import recurrence as plain_loop
from skewflow.kernels.recurrence.by_hand import recurrence_by_hand

from ..measure.timing import Step, interleaved
from ..runs.files import RunError
from ..runs.threads import one_thread
from .command import append_result, check_rounds, show

CASES = ((200, 128, 128), (784, 16, 170), (1000, 1, 64))
"""Length of the sequence, batch, rows of the transition."""


def recurrence(rounds: int = 15, save: bool = False) -> None:
    """Time forward and backward passes of a recurrence with modReLU, in float32 on one thread.

    Args:
        rounds: Interleaved rounds; numbers are medians over them.
        save: Append the milliseconds to results/bench/results.csv of the repository.
    """
    check_rounds("cpu", rounds, save)
    methods = {"plain loop": plain_loop, "by hand": recurrence_by_hand}
    with one_thread():
        for length, batch, d in track(CASES, description="cases"):
            steps = {name: _passes(run, length, batch, d) for name, run in methods.items()}
            times, failures = interleaved(steps, torch.device("cpu"), rounds=rounds)
            if failures:
                raise RunError(f"both recurrences must run: {failures}.")
            case = f"length={length} batch={batch} d={d}"
            for name, values in times.items():
                show(f"{case:28s} {name:10s} {median(values):7.1f} ms")
                if save:
                    append_result("recurrence", case, f"ms, {name}", values)


def _passes(run: Callable[..., Tensor], length: int, batch: int, d: int) -> Step:
    generator = torch.Generator().manual_seed(0)
    u, up = (torch.randn(length, batch, d, generator=generator) for _ in range(2))
    W, h_0, bias = haar(d, generator=generator), torch.zeros(batch, d), torch.full((d,), -0.01)
    inputs = [value.requires_grad_() for value in (u, W, bias)]
    return lambda: torch.autograd.grad(run(u, h_0, W, bias), inputs, up)
