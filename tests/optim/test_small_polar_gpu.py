"""Exact steps of small weights by one launch on CUDA: accuracy, bits, graphs, no waiting."""

import pytest
import torch
from torch import nn

from skewflow.errors import NonFiniteGradientError
from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD
from skewflow.optim.executors import fused_launches

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = [
    (64, 64),
    (64, 64),
    (100, 37),
    (37, 100),
    (3, 20, 9),
    (16, 3, 3, 3),
    (64, 64, 3, 3),
    (2, 1),
]
OPTIONS = {"block_size": "dense", "retraction": "polar", "check_every": 0}


def weights(shapes=SHAPES, device="cuda", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter(orthogonal_(torch.empty(s), generator=generator).to(device, dtype))
        for s in shapes
    ]


def fill_gradients(params, generator, size=1.0):
    for p in params:
        p.grad = (size * torch.randn(p.shape, generator=generator)).to(p)


def is_fused(optimizer):
    """All weights are stepped by the kernel."""
    executors = [e for plan in optimizer._plans.values() for e in plan.executors]
    return all(type(executor) is fused_launches.FusedLaunches for executor in executors)


def error(params):
    """The largest, over the root of k."""
    matrices = [as_matrices(p.detach().double()) for p in params]
    return max(float(orthogonality_error(X).max() / X.shape[-1] ** 0.5) for X in matrices)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "maximize": True}])
@pytest.mark.parametrize("lr", [1e-6, 1e-3, 0.1, 1.0, 1e3, 1e30])
def test_steps_are_those_of_the_cpu_for_any_learning_rate(lr, options, columns):
    ends = []
    for device in ("cpu", "cuda"):
        params = weights(device=device)
        if columns:
            for p in params:
                p.data = p.data.mT.contiguous().mT
        optimizer = FlowSGD(params, lr=lr, **options, **OPTIONS)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            fill_gradients(params, generator)
            optimizer.step()
        ends.append(params)
    expected, params = ends
    assert is_fused(optimizer) or columns  # a transposed convolution has no view as a matrix
    assert error(params) < 1e-6
    for p, q in zip(expected, params, strict=True):
        # A cut step keeps its direction, whose error grows with each that follows.
        assert (p - q.cpu()).abs().max() < (1e-5 if lr < 1 else 1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_masters_of_half_weights_take_the_steps_of_the_cpu(dtype):
    ends = []
    for device in ("cpu", "cuda"):
        params = weights(device=device, dtype=dtype)
        optimizer = FlowSGD(params, lr=0.05, momentum=0.9, **OPTIONS)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            fill_gradients(params, generator)
            optimizer.step()
        masters = [optimizer.state[p]["master"] for p in params]
        ends.append([*masters, *(p.detach().float() for p in params)])
    assert is_fused(optimizer)
    for n, (a, b) in enumerate(zip(*ends, strict=True)):
        assert (a - b.cpu()).abs().max() < (1e-4 if n < len(SHAPES) else 1e-2)


@pytest.mark.parametrize("lr", [1e-3, 0.1, 10.0])
def test_thousands_of_steps_stay_on_the_manifold(lr):
    params = weights()
    optimizer = FlowSGD(params, lr=lr, momentum=0.9, **OPTIONS)
    generator = torch.Generator("cuda").manual_seed(1)
    for p in params:
        p.grad = torch.empty_like(p)
    for _ in range(3000):
        for p in params:
            p.grad.normal_(generator=generator)
        optimizer.step()
    assert error(params) < 1e-6


@pytest.mark.parametrize("moving", [False, True])
def test_the_general_path_takes_the_same_steps(moving, monkeypatch):
    ends = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(fused_launches, "has_small_kernel", lambda *args: False)
        params = weights()
        optimizer = FlowSGD(params, lr=0.02, momentum=0.9, **OPTIONS)
        generator = torch.Generator().manual_seed(1)
        kept = []
        for step in range(8):
            if moving:
                kept.append([p.grad for p in params])
            fill_gradients(params, generator)
            optimizer.param_groups[0]["lr"] = 0.02 / (1 + step)
            optimizer.step()
        assert is_fused(optimizer) == fused
        states = [optimizer.state[p]["momentum_buffer"] for p in params]
        ends.append([*params, *states])
    for a, b in zip(*ends, strict=True):
        assert (a - b).abs().max() < 1e-5 * max(1.0, float(a.detach().abs().max()))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_step_never_waits_and_has_the_same_bits_each_time(nonfinite):
    ends = []
    for _ in range(2):
        params = weights()
        optimizer = FlowSGD(params, lr=0.1, momentum=0.9, nonfinite=nonfinite, **OPTIONS)
        generator = torch.Generator().manual_seed(1)
        fill_gradients(params, generator)
        optimizer.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(5):
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
                optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert is_fused(optimizer)
        ends.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("lr", [1e-3, 1.0])
def test_a_captured_step_replays_the_bits_of_plain_steps(lr):
    ends = []
    for captured in (False, True):
        params = weights()
        optimizer = FlowSGD(params, lr=lr, momentum=0.9, **OPTIONS)
        fill_gradients(params, torch.Generator().manual_seed(1))
        for _ in range(2):
            optimizer.step()
        if captured:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
        for _ in range(3):
            if captured:
                graph.replay()
            else:
                optimizer.step()
            optimizer.step()
        torch.cuda.synchronize()
        assert optimizer.state_dict()["param_groups"][0]["step"] == 8
        ends.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_resumed_run_gives_the_same_bits():
    def run(resume):
        params, generator = weights(), torch.Generator().manual_seed(1)
        optimizer = FlowSGD(params, lr=0.05, momentum=0.9, **OPTIONS)
        for step in range(8):
            if resume and step == 4:
                saved, params = optimizer.state_dict(), [nn.Parameter(p.data) for p in params]
                optimizer = FlowSGD(params, lr=0.05, momentum=0.9, **OPTIONS)
                optimizer.load_state_dict(saved)
            fill_gradients(params, generator)
            optimizer.step()
        return params

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_what_is_not_finite_is_raised_by_a_later_step_and_moves_nothing(bad):
    params = weights()
    named = [(f"weight {n}", p) for n, p in enumerate(params)]
    optimizer = FlowSGD(named, lr=0.01, momentum=0.9, **OPTIONS)
    generator = torch.Generator().manual_seed(1)
    fill_gradients(params, generator)
    optimizer.step()
    before = [p.detach().clone() for p in params]
    momentum = optimizer.state[params[1]]["momentum_buffer"].clone()
    params[1].grad[3, 4] = bad
    optimizer.step()
    torch.cuda.synchronize()
    same = [torch.equal(p, q) for p, q in zip(params, before, strict=True)]
    assert same == [n == 1 for n in range(len(params))]
    assert torch.equal(optimizer.state[params[1]]["momentum_buffer"], momentum)
    with pytest.raises(NonFiniteGradientError, match="gradient of weight 1 must be finite"):
        optimizer.step()
    fill_gradients(params, generator)
    optimizer.step()
    torch.cuda.synchronize()
    optimizer.step()
    assert error(params) < 1e-6


def test_what_is_not_finite_can_be_skipped_and_counted():
    params = weights()
    optimizer = FlowSGD(params, lr=0.01, momentum=0.9, nonfinite="skip", **OPTIONS)
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        fill_gradients(params, generator)
        before = [p.detach().clone() for p in params]
        if step % 2:
            params[4].grad[1, 2, 3] = [torch.nan, torch.inf, 1e30][step // 2]
        optimizer.step()
        same = [torch.equal(p, q) for p, q in zip(params, before, strict=True)]
        assert same == [bool(step % 2) and n == 4 for n in range(len(params))]
    assert [int(optimizer.state[p]["skipped"]) for p in params] == [0, 0, 0, 0, 3, 0, 0, 0]


def test_groups_have_their_own_numbers():
    params = weights([(64, 64)] * 4)
    groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.0, "momentum": 0.0}]
    optimizer = FlowSGD(groups, lr=0.1, momentum=0.9, **OPTIONS)
    fill_gradients(params, torch.Generator().manual_seed(1))
    before = [p.detach().clone() for p in params]
    optimizer.step()
    moved = [
        float((p.detach() - q).abs().max()) > 1e-3 for p, q in zip(params, before, strict=True)
    ]
    assert moved == [True, True, False, False]
