"""Exact steps that are one CUDA graph: the bits of plain steps, whatever happens between two."""

import pytest
import torch
from torch import nn

from skewflow.errors import NonFiniteGradientError
from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD
from skewflow.optim.executors import fused_launches, graph_replay
from skewflow.optim.executors.graph_replay import WARM_UP, GraphReplay

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = [(64, 64), (64, 64), (100, 37), (37, 100), (300, 20), (3, 20, 9), (16, 3, 3, 3)]


@pytest.fixture(autouse=True)
def general(monkeypatch):
    """Small weights, too, are stepped as those are that have no kernel of their own."""
    monkeypatch.setattr(fused_launches, "has_small_kernel", lambda *args: False)


@pytest.fixture
def replays(monkeypatch):
    """For each step of a lot, whether it was replayed."""
    told, call = [], GraphReplay.__call__

    def noted(self, *args):
        told.append(call(self, *args))
        assert not self._failed
        return told[-1]

    monkeypatch.setattr(GraphReplay, "__call__", noted)
    return told


@pytest.fixture
def plain(monkeypatch):
    """Turns graphs off."""
    return lambda: monkeypatch.setattr(graph_replay, "LARGEST", 0)


def weights(shapes=SHAPES, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter(orthogonal_(torch.empty(s), generator=generator).to("cuda", dtype))
        for s in shapes
    ]


def fill_gradients(params, generator, moving=False):
    old = [p.grad for p in params]
    for p in params:
        grad = torch.randn(p.shape, generator=generator, device="cuda").to(p.dtype)
        if moving or p.grad is None:
            p.grad = grad
        else:
            p.grad.copy_(grad)
    return old  # alive, so that the new ones are elsewhere


def run(steps=12, *, dtype=torch.float32, moving=False, change=None, **options):
    params = weights(dtype=dtype)
    options = {"lr": 1e-2, "momentum": 0.9, "block_size": "dense", "check_every": 5, **options}
    optimizer = FlowSGD(params, **options)
    generator = torch.Generator("cuda").manual_seed(1)
    for step in range(steps):
        kept = fill_gradients(params, generator, moving)
        if change is not None:
            change(optimizer, step)
        optimizer.step()
        del kept
    torch.cuda.synchronize()
    states = [optimizer.state[p] for p in params]
    kinds = ("momentum_buffer", "master", "skipped")
    found = [p.detach().clone() for p in params]
    return found + [s[kind].clone() for s in states for kind in kinds if kind in s]


def rates(optimizer, step):
    optimizer.param_groups[0]["lr"] = [1e-2, 1e-3, 1.0, 1e-6, 1e4][step // 2 % 5]


def numbers(optimizer, step):
    optimizer.param_groups[0]["momentum"] = 0.9 if step < 6 else 0.5


def without_one(optimizer, step):
    if 4 <= step < 8:
        optimizer.param_groups[0]["params"][1].grad = None


def loaded(optimizer, step):
    if step == 6:
        optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("retraction", ["exp", "polar"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"moving": True},
        {"moving": True, "change": rates},
        {"change": numbers},
        {"change": without_one},
        {"change": loaded},
        {"momentum": 0.0, "maximize": True},
        {"nesterov": True},
        {"foreach": False},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float16, "moving": True},
    ],
    ids=lambda options: " ".join(
        f"{name}={getattr(value, '__name__', value)}" for name, value in options.items()
    ),
)
def test_replays_give_the_bits_of_plain_steps(options, retraction, replays, plain):
    graphs = run(retraction=retraction, **options)
    assert sum(replays) >= 6 * 4  # lots
    seen = len(replays)
    plain()
    expected = run(retraction=retraction, **options)
    assert len(replays) == seen
    assert all(torch.equal(a, b) for a, b in zip(expected, graphs, strict=True))


@pytest.mark.parametrize("tf32", [False, True])
def test_a_switch_of_precision_between_steps_is_heeded(tf32, replays, plain):
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision

    def switch(optimizer, step):
        matmul.fp32_precision = "tf32" if (step >= 6) == tf32 else "ieee"

    try:
        graphs = run(change=switch)
        plain()
        expected = run(change=switch)
    finally:
        matmul.fp32_precision = before
    assert any(replays)
    assert all(torch.equal(a, b) for a, b in zip(expected, graphs, strict=True))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("retraction", ["exp", "polar"])
def test_neither_a_capture_nor_a_replay_waits(retraction, moving, replays):
    params = weights()
    optimizer = FlowSGD(params, lr=1e-2, momentum=0.9, block_size="dense", retraction=retraction)
    generator = torch.Generator("cuda").manual_seed(1)
    for _ in range(WARM_UP):
        fill_gradients(params, generator)
        optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(5):
            kept = fill_gradients(params, generator, moving)
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
            optimizer.step()
            del kept
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum(replays) == 5 * len(replays) // (5 + WARM_UP)


@pytest.mark.parametrize("retraction", ["exp", "polar"])
def test_what_is_not_finite_is_skipped_in_a_replay(retraction, replays, plain):
    def spoil(optimizer, step):
        p = optimizer.param_groups[0]["params"][1]
        if step in (1, 5, 6):
            p.grad.view(-1)[7] = [torch.nan, torch.inf, 1e30][step % 3]

    options = {"retraction": retraction, "nonfinite": "skip", "change": spoil}
    graphs = run(**options)
    assert any(replays)
    plain()
    expected = run(**options)
    assert all(torch.equal(a, b) for a, b in zip(expected, graphs, strict=True))
    assert [int(n) for n in graphs if n.dtype == torch.int64] == [0, 3, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("retraction", ["exp", "polar"])
def test_what_is_not_finite_in_a_replay_is_raised_by_the_next(retraction, replays):
    params = weights()
    named = [(f"weight {n}", p) for n, p in enumerate(params)]
    optimizer = FlowSGD(named, lr=1e-2, momentum=0.9, block_size="dense", retraction=retraction)
    generator = torch.Generator("cuda").manual_seed(1)
    for _ in range(4):
        fill_gradients(params, generator)
        optimizer.step()
    params[1].grad[3, 4] = torch.nan
    optimizer.step()
    torch.cuda.synchronize()
    before = [p.detach().clone() for p in params]
    with pytest.raises(NonFiniteGradientError, match="gradient of weight 1 must be finite"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    for _ in range(3):
        fill_gradients(params, generator)
        optimizer.step()
    torch.cuda.synchronize()
    optimizer.step()
    assert sum(replays) >= 4
    assert max(float(orthogonality_error(as_matrices(p.detach())).max()) for p in params) < 1e-4


@pytest.mark.parametrize("retraction", ["exp", "polar"])
def test_a_users_graph_and_ours_take_turns(retraction, replays):
    ends = []
    for captured in (False, True):
        params = weights()
        options = {"block_size": "dense", "retraction": retraction, "check_every": 0}
        optimizer = FlowSGD(params, lr=1e-2, momentum=0.9, **options)
        fill_gradients(params, torch.Generator("cuda").manual_seed(1))
        for _ in range(4):
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
        ends.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_optimisers_on_one_and_on_two_streams_take_turns(replays, plain):
    def both(streams):
        pairs = []
        for seed in (1, 2):
            params = weights()
            options = {"block_size": "dense", "retraction": "polar"}
            optimizer = FlowSGD(params, lr=1e-2, momentum=0.9, **options)
            pairs.append((params, optimizer, torch.Generator("cuda").manual_seed(seed)))
        torch.cuda.synchronize()
        for step in range(20):
            for n, (params, optimizer, generator) in enumerate(pairs):
                with torch.cuda.stream(streams[(n + step // 10) % len(streams)]):
                    fill_gradients(params, generator)
                    optimizer.step()
            if step == 9:
                torch.cuda.synchronize()  # the streams change places
        torch.cuda.synchronize()
        return [p.detach().clone() for params, *_ in pairs for p in params]

    one = [torch.cuda.current_stream()]
    two = [torch.cuda.Stream(), torch.cuda.Stream()]
    found = [both(one), both(two)]
    assert any(replays)
    plain()
    expected = both(one)
    for ends in found:
        assert all(torch.equal(a, b) for a, b in zip(expected, ends, strict=True))


def test_graphs_share_their_memory_and_hold_no_gradients(replays):
    params = weights([(512, 512), (256, 256), (256, 256), (700, 100)])
    optimizer = FlowSGD(params, lr=1e-2, momentum=0.9, block_size="dense", retraction="polar")
    generator = torch.Generator("cuda").manual_seed(1)

    def train(steps):
        for step in range(steps):
            kept = fill_gradients(params, generator, moving=True)
            optimizer.param_groups[0]["momentum"] = 0.9 if step % 10 < 5 else 0.8
            optimizer.step()
            del kept
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    first = train(20)
    assert train(100) == first
    assert sum(replays) > 100
    points = sum(p.numel() * p.element_size() for p in params)
    for p in params:
        p.grad = None
    # The points, their momentum, what the graphs read, and the noise of small blocks.
    assert torch.cuda.memory_allocated() - first[0] <= -points
