"""Dense steps on CUDA: those of the CPU at any length, no waiting, graphs, TF32."""

import pytest
import torch

from helpers import randn, random_stiefel
from skewflow.geometry import orthogonality_error, project
from skewflow.kernels.exact_polar import polar_step
from skewflow.kernels.exact_step import exact_step
from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = [(300, 300), (300, 200), (300, 70), (700, 130), (5, 5), (7, 2), (640, 530)]
"""The last is multiplied in float16 parts."""


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("retraction", ["exp", "polar"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_length_stays_on_the_manifold_and_is_the_step_of_the_cpu(
    shape, retraction, tf32, generator, monkeypatch
):
    X = random_stiefel(*shape, batch=(2,), generator=generator, dtype=torch.float32)
    D = randn(2, *shape, generator=generator, dtype=torch.float32)
    D[1] *= 0.01
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32" if tf32 else "ieee")
    for lr in (1e-6, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3, 1e8, 1e30):
        Y = exact_step(X.cuda(), D.cuda(), lr, retraction)
        error = orthogonality_error(Y).max() / shape[1] ** 0.5
        assert error < (1e-5 if tf32 else 2e-6), lr
        if lr <= 1:
            error = (exact_step(X, D, lr, retraction) - Y.cpu()).abs().max()
            length = lr * torch.linalg.matrix_norm(D, 2).max()
            assert error < (2e-3 if tf32 else 1e-6) * max(1.0, length), lr


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("retraction", ["exp", "polar"])
@pytest.mark.parametrize("lr", [1e-3, 1.0])
def test_a_step_never_waits_and_replays_the_same_bits(lr, retraction):
    generator = torch.Generator().manual_seed(0)
    ends = []
    for captured in (False, True):
        params = [
            torch.nn.Parameter(orthogonal_(torch.empty(shape), generator=generator).cuda())
            for shape in SHAPES
        ]
        generator.manual_seed(0)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).cuda()
        optimizer = FlowSGD(params, lr=lr, block_size="dense", retraction=retraction, check_every=0)
        optimizer.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            if captured:
                torch.cuda.set_sync_debug_mode("default")
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    optimizer.step()
                graph.replay()
            else:
                optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        ends.append([p.detach().clone() for p in params])
        generator.manual_seed(0)
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lr", [1e-6, 1e-5, 1e-2])
@pytest.mark.parametrize("shape, num", [((16, 8), 1), ((8, 8), 3), ((700, 500), 1)], ids=str)
def test_equal_steps_stay_on_the_manifold_at_any_time(shape, num, lr, generator):
    params, worst = [], torch.zeros((), device="cuda")
    for _ in range(num):
        p = torch.nn.Parameter(orthogonal_(torch.empty(shape), generator=generator).cuda())
        p.grad = torch.randn(shape, generator=generator).cuda()
        params.append(p)
    optimizer = FlowSGD(params, lr=lr, block_size="dense")
    for _ in range(600):
        optimizer.step()
        errors = [orthogonality_error(p.detach().double()) for p in params]
        worst = torch.stack([*errors, worst.double()]).max()
    assert worst / shape[1] ** 0.5 < 1e-5


@pytest.mark.parametrize("shape", [(1100, 1100), (900, 600)], ids=str)
@pytest.mark.parametrize("lr", [1e-6, 1e-3, 5e-3, 0.3, 10.0, 1e30])
def test_steps_by_parts_are_feasible_and_those_of_float64(lr, shape, generator):
    X = random_stiefel(*shape, batch=(2,), generator=generator, dtype=torch.float32).cuda()
    D = randn(2, *shape, generator=generator, dtype=torch.float32).cuda()
    D[1] *= 0.01
    Y, T = polar_step(X, D, lr, tangent=True)
    assert orthogonality_error(Y).max() / shape[1] ** 0.5 < 1e-6
    S = X.double().mT @ D.double()
    tangent = D - X.double() @ (S + S.mT) / 2
    assert (T - tangent).abs().max() < 1e-5
    if lr < 0.01:  # longer ones are cut
        exact = project(X.double() - lr * (D - X.double() @ S.mT))
        assert (Y - exact).abs().max() < 1e-6 * max(1.0, lr * torch.linalg.matrix_norm(D, 2).max())


def test_a_gradient_that_is_not_finite_leaves_a_large_weight_alone(generator):
    start = random_stiefel(600, 520, generator=generator, dtype=torch.float32).cuda()
    p = torch.nn.Parameter(start.clone())
    optimizer = FlowSGD(
        [p], lr=0.1, momentum=0.9, block_size="dense", retraction="polar", nonfinite="skip"
    )
    for step in range(5):
        p.grad = randn(600, 520, generator=generator, dtype=torch.float32).cuda()
        before = p.detach().clone()
        if step % 2:
            p.grad[7, 3] = (torch.nan, torch.inf)[step // 2]
        optimizer.step()
        moved = (p.detach() - before).abs().max()
        assert moved < 1e-6 if step % 2 else moved > 1e-3
        assert orthogonality_error(p.detach()) / 520**0.5 < 1e-6
