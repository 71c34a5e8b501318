"""Compiled CPU kernels: how many threads they use, what they keep on disk, what they say."""

import os
import subprocess
import sys
from threading import Thread

import numpy as np
import pytest
import torch
from numba import prange

from skewflow.kernels._runtime import numba_loops
from skewflow.kernels._runtime.numba_loops import GRAIN, Loops

STEP = """
import hashlib, sys, torch
from skewflow.optim import FlowSGD
torch.set_num_threads(2)
size, columns, block_size = map(int, sys.argv[1:4])
def steps():
    g = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter(torch.eye(size, columns, dtype=torch.float64))
    optimizer = FlowSGD([p], lr=1e-4, momentum=0.9, nesterov=True, block_size=block_size)
    for _ in range(3):
        p.grad = torch.randn(p.shape, generator=g, dtype=p.dtype)
        optimizer.step()
    return hashlib.sha256(p.detach().numpy().tobytes()).hexdigest()
"""


def run(code, *sizes, **environment):
    words = [sys.executable, "-c", STEP + code, *map(str, sizes)]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@Loops
def _squares(out, x):
    for i in prange(x.size):
        out[i] = x[i] * x[i]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "allowed, work, used", [(1, 100, 1), (2, 1, 1), (2, 1.99, 1), (2, 2, 2), (2, 100, 2)]
)
def test_a_thread_takes_a_grain_of_work_and_there_are_no_more_than_torch_has(
    allowed, work, used, threads, monkeypatch
):
    monkeypatch.setattr(numba_loops, "_MOST_THREADS", 2)
    seen = []
    monkeypatch.setattr(_squares, "_serial", lambda *_: seen.append(1))
    monkeypatch.setattr(
        _squares, "_parallel", lambda *_: seen.append(numba_loops.numba.get_num_threads())
    )
    threads(allowed)
    _squares(int(work * GRAIN), None, None)
    assert seen == [used]


def test_several_threads_compute_what_one_does(threads):
    x, (one, two) = np.arange(1000.0), np.zeros((2, 1000))
    threads(1)
    _squares(2 * GRAIN, one, x)
    threads(2)
    _squares(2 * GRAIN, two, x)
    assert np.array_equal(one, x**2) and np.array_equal(one, two)


def test_a_kernel_leaves_torch_its_threads_and_a_forked_child_steps_after_their_use():
    # torch's own parallel operations hang in such a child, so the parent makes the gradient.
    code = """
import os
steps()
print(torch.get_num_threads())
p = torch.nn.Parameter(torch.eye(size, columns, dtype=torch.float64))
p.grad = torch.randn(p.shape, dtype=p.dtype)
optimizer = FlowSGD([p], lr=0.1, block_size=block_size)
read, write = os.pipe()
pid = os.fork()
optimizer.step()
found = hashlib.sha256(p.detach().numpy().tobytes()).digest()
if not pid:
    os.write(write, found)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.read(read, 32) == found)
"""
    assert run(code, 700, 700, 2)[0].splitlines() == ["2", "0 True"]


def test_two_threads_may_step_at_once_whatever_layer_numba_has():
    code = """
from threading import Thread
expected, found = steps(), []
both = [Thread(target=lambda: found.append(steps())) for _ in range(2)]
[t.start() for t in both]
[t.join() for t in both]
print(found == [expected] * 2)
"""
    assert run(code, 700, 700, 2, NUMBA_THREADING_LAYER="workqueue")[0] == "True"


def test_a_caller_that_finds_the_threads_busy_runs_on_its_own(threads):
    threads(2)
    x, out = np.arange(10.0), np.zeros(10)
    with numba_loops._pool.lock:
        other = Thread(target=lambda: _squares(2 * GRAIN, out, x))
        other.start()
        other.join()
    assert np.array_equal(out, x**2)


@pytest.mark.parametrize("block_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_process_that_compiles_says_so_once_and_a_later_one_reads_the_same_bits(
    block_size, tmp_path
):
    code = (
        "from skewflow.kernels._runtime import numba_loops\n"
        "numba_loops._announcer._left = 0.01\nprint(steps(), steps())"
    )
    (first, said), (second, says) = (
        run(code, 20, 7, block_size, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)
    )
    assert first == second
    assert said.count("compiling") == 1 and "kept for later processes" in said
    assert not says


def test_where_nothing_can_be_written_kernels_are_compiled_by_every_process():
    code = """
from numba.core.caching import CacheImpl
CacheImpl._locator_classes = []
from skewflow.kernels._runtime import numba_loops
numba_loops._announcer._left = 0.01
print(len(steps()))
"""
    out, err = run(code, 20, 7, 2)
    assert out == "64" and "NUMBA_CACHE_DIR" in err
