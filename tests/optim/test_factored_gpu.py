"""Factored steps on CUDA: those of the CPU, no waiting, graphs, captured layers, late errors."""

import copy

import pytest
import torch
from torch import nn

from helpers import randn, random_stiefel
from skewflow.errors import NonFiniteGradientError
from skewflow.geometry import orthogonality_error
from skewflow.kernels.polish.reference import polish_
from skewflow.kernels.rotate_factored.dispatch import FactoredStep
from skewflow.kernels.rotate_factored.reference import factored_generator
from skewflow.nn import OrthogonalLinear, orthogonal_
from skewflow.optim import FactoredGradient, FlowSGD, capture_factors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DENSE = {"lr": 0.05, "block_size": "dense", "check_every": 0}
SHAPES = [(300, 300, 20), (512, 512, 1), (1000, 300, 70), (5120, 1024, 128), (64, 64, 16)]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_is_that_of_float64_on_the_cpu_and_stays_orthogonal(shape, known, generator):
    d, k, r = shape
    X = random_stiefel(d, k, batch=(1,), generator=generator, dtype=torch.float32).cuda()
    polish_(X)
    A = (randn(1, d, r, generator=generator, dtype=torch.float32) / d**0.5).cuda()
    B = (randn(1, k, r, generator=generator, dtype=torch.float32) / r**0.5).cuda()
    V, AX = (X.double() @ B.double()).float(), (A.double().mT @ X.double()).float()
    norm, step = float(factored_generator(A, V).norm), FactoredStep()
    for length in (1e-6, 0.01, 0.3, 3.9, 1e3, 1e30):
        Y, lr = X.clone(), length / norm
        assert step(Y, A, B, lr, *((V, AX) if known else ())).all()
        assert orthogonality_error(Y).max() / k**0.5 < 1e-6
        if length < 4:  # beyond it the step is cut
            Z = X.double()
            step(Z, A.double(), B.double(), lr)
            assert (Y.double() - Z).abs().max() < 1e-6


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("length", [1.0, 3.0])
@pytest.mark.parametrize("shape", [(5000, 1000, 128), (300, 300, 60)], ids=str)
def test_many_steps_stay_on_the_manifold_and_never_wait(shape, length):
    d, k, r = shape
    g = torch.Generator("cuda").manual_seed(0)
    X = torch.randn(d, k, dtype=torch.float64, device="cuda", generator=g)
    p = nn.Parameter(torch.linalg.qr(X)[0].float())
    norm = (1 + (r / d) ** 0.5) * (1 + (k / r) ** 0.5)  # of A B^T
    optimizer = FlowSGD([p], lr=length / norm, block_size="auto")
    worst = torch.zeros((), dtype=torch.float64, device="cuda")
    try:
        for step in range(1000):
            if step == 2:
                torch.cuda.set_sync_debug_mode("error")
            A = torch.randn(d, r, device="cuda", generator=g) / d**0.5
            B = torch.randn(k, r, device="cuda", generator=g) / r**0.5
            optimizer.step(factors={p: (A, B)})
            if step % 64 == 63:
                X = p.detach().double()
                error = torch.linalg.matrix_norm(X.mT @ X - torch.eye(k, device="cuda")) / k**0.5
                worst = torch.maximum(worst, error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert worst.item() < (2e-6 if length == 1.0 else 1e-5)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_never_waits_and_replays_the_same_bits(momentum):
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(orthogonal_(torch.empty(300, 200), generator=generator).cuda())
    A, B = (torch.randn(n, 8, generator=generator).cuda() / n for n in (300, 200))
    ends = []
    for captured in (False, True):
        q = nn.Parameter(p.detach().clone())
        optimizer = FlowSGD([q], **DENSE, momentum=momentum)
        for _ in range(2):
            optimizer.step(factors={q: (A, B)})
        torch.cuda.synchronize()
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step(factors={q: (A, B)})
            graph.replay()
            graph.replay()
        else:
            torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(2):
                    optimizer.step(factors={q: (A, B)})
            finally:
                torch.cuda.set_sync_debug_mode("default")
        ends.append(q.detach().clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize("known", [False, True])
def test_the_graph_of_later_steps_takes_new_numbers_and_factors(known, generator):
    X = random_stiefel(300, 200, batch=(1,), generator=generator, dtype=torch.float32).cuda()
    step, Y = FactoredStep(), X.clone()
    for lr in (0.1, 0.2, 0.3, 0.01, 0.2):
        A, B = (randn(1, n, 8, generator=generator, dtype=torch.float32).cuda() for n in (300, 200))
        given = (X @ B, A.mT @ X) if known else ()
        Y.copy_(X)
        assert step(Y, A, B, lr, *given).all()
        Z = X.clone()
        FactoredStep()(Z, A, B, lr, *given)  # its first step is not in a graph
        assert torch.equal(Y, Z) and not torch.equal(X, Y)
    (repeated,) = next(iter(step._workspaces.values()))._rest.values()
    assert repeated._graph is not None


@pytest.mark.parametrize("tf32", [False, True])
def test_captured_layers_take_the_step_of_their_gradients(tf32, generator):
    layers = [OrthogonalLinear(*sizes) for sizes in ((512, 512), (512, 700), (700, 300))]
    for layer in layers:
        orthogonal_(layer.weight, generator=generator)
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.Tanh(), layers[2]).cuda()
    plain = copy.deepcopy(model)
    capture_factors(model)
    ours, theirs = (FlowSGD([m.weight for m in net if isinstance(m, nn.Linear)], **DENSE)
                    for net in (model, plain))  # fmt: skip
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        for _ in range(20):
            x = randn(32, 512, generator=generator, dtype=torch.float32).cuda()
            for net, optimizer in ((model, ours), (plain, theirs)):
                net(x).square().mean().backward()
                assert isinstance(net[0].weight.grad, FactoredGradient) == (net is model)
                optimizer.step()
                optimizer.zero_grad()
    finally:
        matmul.fp32_precision = before
    for a, b in zip(model, plain, strict=True):
        if isinstance(a, nn.Linear):
            assert (a.weight - b.weight).abs().max() < (1e-3 if tf32 else 1e-5)
            X = a.weight.detach()
            X = X if X.shape[0] >= X.shape[1] else X.mT
            assert orthogonality_error(X) / X.shape[1] ** 0.5 < 4e-6


@pytest.mark.bad_input
@pytest.mark.parametrize("skip", [False, True])
def test_factors_that_are_not_finite_are_reported_later(skip, generator):
    p = nn.Parameter(orthogonal_(torch.empty(300, 300), generator=generator).cuda())
    before, nonfinite = p.detach().clone(), "skip" if skip else "raise"
    optimizer = FlowSGD([("W", p)], **DENSE, nonfinite=nonfinite)
    A, B = (torch.randn(300, 4, generator=generator).cuda() for _ in range(2))
    bad = A.clone()
    bad[3, 2] = torch.nan
    optimizer.step(factors={p: (bad, B)})
    torch.cuda.synchronize()
    assert torch.equal(p, before)
    if skip:
        assert int(optimizer.state[p]["skipped"]) == 1
    else:
        with pytest.raises(NonFiniteGradientError, match="factors of W must be finite"):
            optimizer.step(factors={p: (A, B)})
        assert torch.equal(p, before)
    optimizer.step(factors={p: (A, B)})
    assert not torch.equal(p, before)


@pytest.mark.bad_input
def test_a_weight_that_was_written_behind_autograds_back_is_reported_later(generator):
    layer = OrthogonalLinear(300, 300).cuda()
    capture_factors(layer)
    optimizer = FlowSGD([("W", layer.weight)], **DENSE)
    layer(torch.randn(8, 300, device="cuda", requires_grad=True)).square().sum().backward()
    layer.weight.data.copy_(layer.weight.data.mT.clone())
    before = layer.weight.detach().clone()
    optimizer.step()
    torch.cuda.synchronize()
    assert torch.equal(layer.weight, before)
    with pytest.raises(NonFiniteGradientError, match="kept by a layer with the same weight"):
        optimizer.step()


def test_autograd_knows_that_a_step_has_written(generator):
    W = nn.Parameter(random_stiefel(128, 128, generator=generator, dtype=torch.float32).cuda())
    A, B = (randn(128, 8, generator=generator, dtype=torch.float32).cuda() for _ in range(2))
    x = torch.ones(4, 128, device="cuda", requires_grad=True)
    out = (x @ W).sum()
    FlowSGD([W], **DENSE).step(factors={W: (A, B)})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
