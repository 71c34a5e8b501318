"""FlowSGD on CUDA: the same step as on the CPU, no synchronisation, graphs, memory, drift."""

import pytest
import torch
from torch import nn

from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = [(64, 64), (100, 37), (37, 100), (3, 20, 9), (16, 3, 3, 3), (40, 2, 3, 3)]


def weights(shapes, device="cuda", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter(orthogonal_(torch.empty(s), generator=generator).to(device, dtype))
        for s in shapes
    ]


def fill_gradients(params, generator):
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p)


@pytest.mark.parametrize("block_size", [2, 3, 16, "dense"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_cuda_and_cpu_take_the_same_steps(block_size, momentum):
    ends = []
    for device in ("cpu", "cuda"):
        params = weights(SHAPES, device)
        optimizer = FlowSGD(params, lr=1e-3, momentum=momentum, block_size=block_size)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            fill_gradients(params, generator)
            optimizer.step()
        ends.append([p.detach().cpu() for p in params])
    for a, b in zip(*ends, strict=True):
        assert (a - b).abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("block_size", [2, 16])
def test_a_step_never_waits_for_the_device(block_size):
    params = weights(SHAPES)
    optimizer = FlowSGD(params, lr=1e-3, momentum=0.9, block_size=block_size)
    generator = torch.Generator().manual_seed(1)
    fill_gradients(params, generator)
    optimizer.step()  # compiles, makes the buffers
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("block_size", [2, 16])
def test_a_captured_step_replays_with_fresh_draws(block_size):
    runs = []
    for captured in (False, True):
        params = weights([(64, 64), (37, 100)])
        optimizer = FlowSGD(params, lr=1e-3, momentum=0.9, block_size=block_size, guard_every=0)
        fill_gradients(params, torch.Generator().manual_seed(1))
        for _ in range(3):
            optimizer.step()
        if captured:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            for _ in range(5):
                graph.replay()
        else:
            for _ in range(5):
                optimizer.step()
        torch.cuda.synchronize()
        runs.append([p.detach().clone() for p in params])
        assert optimizer.state_dict()["param_groups"][0]["step"] == 8
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("block_size", [2, 16, "dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_gives_the_same_bits(block_size, dtype, tmp_path):
    def run(resume):
        params = weights([(64, 64), (37, 100)], dtype=dtype)
        make = lambda ps: FlowSGD(ps, lr=1e-2, momentum=0.9, block_size=block_size, guard_every=4)  # noqa: E731
        optimizer, generator = make(params), torch.Generator().manual_seed(1)
        for step in range(12):
            if resume and step == 6:
                torch.save({"o": optimizer.state_dict(), "p": params}, tmp_path / "s.pt")
                saved = torch.load(tmp_path / "s.pt", weights_only=True)
                params = [nn.Parameter(p.detach().clone()) for p in saved["p"]]
                optimizer = make(params)
                optimizer.load_state_dict(saved["o"])
            fill_gradients(params, generator)
            optimizer.step()
        return params

    for a, b in zip(run(False), run(True), strict=True):
        assert torch.equal(a, b)


def test_a_matching_step_needs_no_memory_of_its_own():
    (p,) = weights([(4096, 4096)])
    p.grad = torch.randn_like(p)
    optimizer = FlowSGD([p], lr=1e-6, block_size=2)
    optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        optimizer.step()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    assert extra <= 0.01 * p.numel() * p.element_size()


@pytest.mark.slow
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("block_size", [2, 8, 64, "dense"])
def test_a_hundred_thousand_steps_stay_on_the_manifold(block_size, tf32):
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        (p,) = weights([(256, 256)])
        optimizer = FlowSGD([p], lr=1e-4, block_size=block_size)
        generator = torch.Generator("cuda").manual_seed(1)
        p.grad = torch.empty_like(p)
        for _ in range(100_000):
            p.grad.normal_(generator=generator)
            optimizer.step()
        assert orthogonality_error(as_matrices(p.detach())).max() / 16 < 1e-5
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
