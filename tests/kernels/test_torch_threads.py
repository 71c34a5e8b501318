"""Torch's threads around a step: the checks of small weights and of forked processes use one."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from skewflow.kernels._runtime.torch_threads import GRAIN, few_threads
from skewflow.optim import FlowSGD, drift, large_angles

FORKED = """
import os, signal, torch
from skewflow.optim import AngleSGD, FlowAdam, FlowSGD
torch.set_num_threads(2)
for make, options in [
    (FlowSGD, {"block_size": 2}), (FlowSGD, {}), (FlowSGD, {"block_size": "dense"}),
    (FlowAdam, {}), (AngleSGD, {"block_size": "dense"}),
]:
    p = torch.nn.Parameter(torch.eye(600, dtype=torch.float64))
    ones = torch.ones(600, 600, dtype=p.dtype)
    p.grad = (p @ ones.triu()).detach()  # on torch's threads, which a child does not have
    optimizer = make([p], lr=0.1, check_every=1, **options)
    p.data[10:20] *= 1 + 1e-9  # a polish is due
    pid = os.fork()
    if not pid:
        signal.alarm(60)  # it ends a child that waits for ever
        optimizer.step()
        moved, error = p.diagonal().min() < 0.999, abs(p.detach().norm() - 600**0.5)
        os._exit(7 if moved and error < 1e-12 and torch.get_num_threads() == 2 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_threads_are_used_from_two_grains_of_work_on_and_given_back(two_threads):
    for work, used in ((1, 1), (2 * GRAIN - 1, 1), (2 * GRAIN, 2)):
        with few_threads(work):
            assert torch.get_num_threads() == used
        assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), few_threads(1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("rows, used", [(64, 1), (512, 2)])
def test_small_weights_are_checked_on_one_thread(two_threads, monkeypatch, rows, used):
    seen = []

    def watched(function):
        return lambda *args: seen.append(torch.get_num_threads()) or function(*args)

    monkeypatch.setattr(drift, "residuals", watched(drift.residuals))
    monkeypatch.setattr(large_angles, "largest_angle", watched(large_angles.largest_angle))
    p = nn.Parameter(torch.eye(rows))
    p.grad = torch.ones(rows, rows).triu()
    FlowSGD([p], lr=1e-6, block_size=2, check_every=1).step()
    assert seen == [used, used]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_takes_any_step_and_polishes_without_torchs_threads():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=400
    )
    assert done.stdout.split() == ["7"] * 5, done.stdout + done.stderr
