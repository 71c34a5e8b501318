"""Threads: a run finds as many as were asked for, whatever ran before."""

import subprocess
import sys

import torch

from skewflow.lab.threads import one_thread

CODE = """
import torch
from skewflow.kernels.permutation.cpu import start_threads
from skewflow.optim import FlowSGD
torch.set_num_threads(1)
start_threads()
p = torch.nn.Parameter(torch.eye(8))
p.grad = torch.randn(8, 8)
FlowSGD([p], lr=1e-3).step()
print(torch.get_num_threads())
"""


def test_a_kernel_leaves_torch_its_threads():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_one_thread_is_given_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
