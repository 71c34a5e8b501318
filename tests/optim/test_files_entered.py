"""A warm step on a CPU runs the code of few files, so that a reader can follow it."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import skewflow
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD

LIBRARY = str(Path(skewflow.__file__).parent)
CASES = {
    "s = 2": (FlowSGD, {"block_size": 2}, False, 8),
    "s = 8": (FlowSGD, {"block_size": 8}, False, 8),
    "dense": (FlowSGD, {"block_size": "dense"}, False, 9),
    "FlowAdam": (FlowAdam, {"block_size": 2}, False, 9),
    "factored": (FlowSGD, {"block_size": "dense"}, True, 11),
}
"""The optimiser, its options, whether the gradient comes in factors, and the most files."""


@pytest.mark.parametrize("name", CASES)
def test_a_warm_step_enters_few_files(name, generator):
    make, options, factored, most = CASES[name]
    p = nn.Parameter(orthogonal_(torch.empty(32, 32), generator=generator))
    optimizer = make([p], lr=1e-3, **options)
    entered = set()

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(LIBRARY):
            entered.add(path.removeprefix(LIBRARY))

    for warm in (False, False, True):
        factors = [torch.randn(32, 1, generator=generator) for _ in range(2)]
        if not factored:
            p.grad = factors[0] @ factors[1].mT
        sys.setprofile(note if warm else None)
        try:
            optimizer.step(factors={p: tuple(factors)} if factored else None)
        finally:
            sys.setprofile(None)
    assert 3 < len(entered) <= most, sorted(entered)
