"""FlowSGD on CUDA: the same step as on the CPU, no synchronisation, graphs, memory, drift."""

import warnings

import pytest
import torch
from torch import nn

from skewflow.errors import NonFiniteGradientError
from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = [(64, 64), (100, 37), (37, 100), (3, 20, 9), (16, 3, 3, 3), (40, 2, 3, 3)]
LARGE = [(182, 37), (37, 182), (20, 22, 3, 3)]
"""Two or three blocks each of up to 91 rows."""


def weights(shapes, device="cuda", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter(orthogonal_(torch.empty(s), generator=generator).to(device, dtype))
        for s in shapes
    ]


def fill_gradients(params, generator):
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p)


@pytest.mark.parametrize("block_size, lr", [(2, 1e-3), (3, 1e-3), (16, 1e-3), ("dense", 1e-3),
                                            (91, 1e-5), (91, 1e-3), (91, 0.1)])  # fmt: skip
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_cuda_and_cpu_take_the_same_steps(block_size, lr, momentum):
    ends = []
    for device in ("cpu", "cuda"):
        params = weights(LARGE if block_size == 91 else SHAPES, device)
        optimizer = FlowSGD(params, lr=lr, momentum=momentum, block_size=block_size)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            fill_gradients(params, generator)
            optimizer.step()
        ends.append([p.detach().cpu() for p in params])
    for a, b in zip(*ends, strict=True):
        assert (a - b).abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("block_size", [2, 16, 91, "dense"])
def test_a_step_never_waits_for_the_device(block_size):
    params = weights(LARGE if block_size == 91 else SHAPES)
    optimizer = FlowSGD(params, lr=1e-3, momentum=0.9, block_size=block_size, check_every=2)
    generator = torch.Generator().manual_seed(1)
    fill_gradients(params, generator)
    for _ in range(2):
        optimizer.step()  # compiles, and makes the buffers
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(7):  # checks of angles at steps 4 and 8
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("block_size", [2, 16])
def test_a_large_angle_is_told_at_the_next_check(block_size):
    params = weights([(64, 64)])
    fill_gradients(params, torch.Generator().manual_seed(1))
    optimizer = FlowSGD(params, lr=10.0, block_size=block_size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    with pytest.warns(UserWarning, match="a step turns a plane of"):
        optimizer.step()


@pytest.mark.parametrize("block_size", [2, 16, 91, "dense"])
def test_a_captured_step_replays_with_fresh_draws(block_size):
    runs = []
    for captured in (False, True):
        params = weights([(64, 64), (37, 182)])
        optimizer = FlowSGD(params, lr=1e-3, momentum=0.9, block_size=block_size, check_every=0)
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
        make = lambda ps: FlowSGD(ps, lr=1e-2, momentum=0.9, block_size=block_size, check_every=4)  # noqa: E731
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
    for _ in range(4):
        optimizer.step()  # steps 1, 2 and 4 check the angles, with copies of few rows
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
@pytest.mark.parametrize("block_size", [2, 8, 64, 128, "dense"])
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


def test_gradients_that_move_are_followed_and_not_kept():
    ends = []
    for moving in (False, True):
        params = weights(SHAPES)
        optimizer = FlowSGD(params, lr=1e-2, momentum=0.9, block_size=2)
        generator = torch.Generator("cuda").manual_seed(1)
        kept = []
        for _ in range(20):
            for p in params:
                if moving:
                    kept.append(p.grad)
                    p.grad = None
                grad = torch.randn(p.shape, generator=generator, device="cuda")
                if p.grad is None:
                    p.grad = grad
                else:
                    p.grad.copy_(grad)
            optimizer.step()
        ends.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    (p,) = weights([(1024, 1024)])
    optimizer = FlowSGD([p], lr=1e-2, block_size=2)
    before = torch.cuda.memory_allocated()
    p.grad = torch.randn_like(p)
    optimizer.step()
    p.grad = None
    assert torch.cuda.memory_allocated() - before < 0.01 * p.numel() * p.element_size()


@pytest.mark.parametrize("block_size", [2, 16, 91])
def test_one_launch_for_all_gives_the_bits_of_one_for_each(block_size):
    ends = []
    for foreach in (None, False):
        params = weights([(182, 64)] * 5 + [(9, 182)] * 3)
        fill_gradients(params, torch.Generator().manual_seed(1))
        FlowSGD(params, lr=1e-2, block_size=block_size, foreach=foreach).step()
        ends.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("block_size", [2, 16, 91, "dense"])
def test_a_gradient_that_is_not_finite_is_raised_without_waiting(block_size):
    d = 182 if block_size == 91 else 64
    params = weights([(d, 64), (d, 64), (9, d)])
    named = list(zip(("first", "second", "third"), params, strict=True))
    optimizer = FlowSGD(named, lr=1e-2, momentum=0.9, block_size=block_size)
    fill_gradients(params, torch.Generator().manual_seed(1))
    optimizer.step()
    params[1].grad[5, 7] = torch.nan
    optimizer.step()
    torch.cuda.synchronize()
    for p in params:
        assert orthogonality_error(as_matrices(p.detach())).max() < 1e-4
        assert torch.isfinite(optimizer.state[p]["momentum_buffer"]).all()
    before = [p.detach().clone() for p in params]
    with pytest.raises(NonFiniteGradientError, match="gradient of second must be finite"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    fill_gradients(params, torch.Generator().manual_seed(2))
    optimizer.step()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("block_size", [2, 16, 91, "dense"])
def test_a_gradient_that_is_not_finite_can_be_skipped_on_the_device(block_size):
    d = 182 if block_size == 91 else 64
    params = weights([(d, 64), (d, 64), (9, d)])
    optimizer = FlowSGD(params, lr=1e-2, momentum=0.9, block_size=block_size, nonfinite="skip")
    fill_gradients(params, torch.Generator().manual_seed(1))
    for _ in range(2):
        optimizer.step()  # the third step does not look at its angles
    params[1].grad[5, 7] = torch.inf
    before = [p.detach().clone() for p in params]
    momentum = optimizer.state[params[1]]["momentum_buffer"].clone()
    if block_size != "dense":
        torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same = [torch.equal(p, q) for p, q in zip(params, before, strict=True)]
    if block_size == "dense":  # X plus nothing is rounded once more by the exponential of zero
        same[1] = bool((params[1] - before[1]).abs().max() < 1e-6)
    assert same == [False, True, False]
    assert torch.equal(optimizer.state[params[1]]["momentum_buffer"], momentum)
    assert [int(optimizer.state[p]["skipped"]) for p in params] == [0, 1, 0]


def test_steps_before_between_and_after_replays_draw_in_turn():
    ends = []
    for captured in (False, True):
        params = weights([(64, 64)])
        optimizer = FlowSGD(params, lr=1e-2, block_size=2, check_every=0)
        fill_gradients(params, torch.Generator().manual_seed(1))
        optimizer.step()
        if captured:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            again = graph.replay
        else:
            again = optimizer.step
        for _ in range(3):
            again()
            optimizer.step()
        assert optimizer.state_dict()["param_groups"][0]["step"] == 7
        ends.append(params[0].detach().clone())
    assert torch.equal(*ends)


def test_double_precision_pairs_stay_at_double_precision():
    (p,) = weights([(100, 40)], dtype=torch.float64)
    with torch.no_grad():
        orthogonal_(p)
    optimizer = FlowSGD([p], lr=1e-3, block_size=2)
    for _ in range(200):
        p.grad = torch.randn_like(p)
        optimizer.step()
    assert orthogonality_error(p.detach()) < 1e-12


@pytest.mark.slow
def test_bfloat16_stays_on_the_manifold_with_its_master():
    (p,) = weights([(256, 256)], dtype=torch.bfloat16)
    optimizer = FlowSGD([p], lr=1e-4, block_size=2)
    generator = torch.Generator("cuda").manual_seed(1)
    p.grad = torch.empty_like(p)
    for _ in range(100_000):
        p.grad.normal_(generator=generator)
        optimizer.step()
    assert orthogonality_error(optimizer.state[p]["master"]) / 16 < 1e-5
    assert orthogonality_error(p.detach().float()) / 16 < 5e-3
