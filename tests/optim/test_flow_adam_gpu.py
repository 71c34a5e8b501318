"""FlowAdam on CUDA: the steps of the CPU, in a graph, resumed, without waiting."""

import pytest
import torch
from torch import nn

from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = [(64, 64), (64, 64), (182, 37), (37, 182), (3, 20, 9), (16, 3, 3, 3)]


def weights(device="cuda", dtype=torch.float32, longer_than=0):
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter(orthogonal_(torch.empty(s), generator=generator).to(device, dtype))
        for s in SHAPES
        if max(s) > longer_than
    ]


def fill_gradients(params, generator):
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p)


@pytest.mark.parametrize("block_size", [2, 3, 16, 91, "dense"])
def test_cuda_and_cpu_take_the_same_steps(block_size):
    ends = []
    for device in ("cpu", "cuda"):
        params = weights(device)
        optimizer = FlowAdam(params, lr=1e-4, block_size=block_size)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            fill_gradients(params, generator)
            optimizer.step()
        ends.append([p.detach().cpu() for p in params])
    for a, b in zip(*ends, strict=True):
        assert (a - b).abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("block_size", [2, 16, 91])
def test_a_step_never_waits_and_replays(block_size):
    ends = []
    for captured in (False, True):
        params = weights(longer_than=block_size)  # an exact step is not captured
        optimizer = FlowAdam(params, lr=1e-3, block_size=block_size, check_every=0)
        fill_gradients(params, torch.Generator().manual_seed(1))
        for _ in range(2):
            optimizer.step()
        again = optimizer.step
        if captured:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            again = graph.replay
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(7):  # checks of angles at steps 4 and 8
                again()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        ends.append([p.detach().clone() for p in params])
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)
        assert orthogonality_error(as_matrices(a)).max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_gives_the_same_bits(dtype, tmp_path):
    def run(resume):
        params = weights(dtype=dtype)
        optimizer, generator = FlowAdam(params, lr=1e-3, block_size=2), torch.Generator()
        for step in range(8):
            if resume and step == 4:
                torch.save({"o": optimizer.state_dict(), "p": params}, tmp_path / "s.pt")
                saved = torch.load(tmp_path / "s.pt", weights_only=True)
                params = [nn.Parameter(p.detach().clone()) for p in saved["p"]]
                optimizer = FlowAdam(params, lr=1e-3, block_size=2)
                optimizer.load_state_dict(saved["o"])
            fill_gradients(params, generator.manual_seed(step))
            optimizer.step()
        return params

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=True))
