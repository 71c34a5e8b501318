"""Small exact steps as an optimiser takes them: many weights, what is not finite, which weights."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from executor_cases import context, members, settings
from helpers import assert_close, randn
from skewflow.errors import NonFiniteGradientError
from skewflow.kernels.exact_polar import has_small_kernel, polar_step
from skewflow.kernels.update import Update, direction
from skewflow.optim.executors.fused_launches import FusedLaunches

pytest.importorskip("triton")

SHAPES = [(9, 4), (4, 9), (2, 9, 4), (5, 3, 2, 2)]


class Trained:
    """Three weights of one shape in an executor, as a plan makes it."""

    def __init__(self, shape, generator, device, monkeypatch, *, skip=False, low=None):
        if device == "cpu":  # which has no pinned memory
            zeros = torch.zeros
            monkeypatch.setattr(torch, "zeros", lambda *a, pin_memory=False, **k: zeros(*a, **k))
        self.generator = generator
        options = {"block_size": "dense", "retraction": "polar", "device": device, "dtype": low}
        found = members([shape] * 3, generator, **options)
        for member in found:
            points = member.weight.points(member.state)
            member.state["momentum_buffer"] = torch.zeros_like(points)
        self.weights = [member.weight for member in found]
        self.states = [member.state for member in found]
        self.settings = settings(Update(lr=0.1, momentum=0.9), skip=skip)
        self.executor = FusedLaunches(found, self.settings)

    def fill_gradients(self):
        for weight in self.weights:
            weight.p.grad = randn(*weight.p.shape, generator=self.generator).to(weight.p)

    def step(self, **numbers):
        grads = [weight.p.grad for weight in self.weights]
        update = Update(momentum=0.9, **numbers)
        self.executor.step(context(grads, update, self.settings.shared))

    def points(self):
        return [
            weight.points(state).cpu().clone()
            for weight, state in zip(self.weights, self.states, strict=True)
        ]


@pytest.mark.parametrize("low", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_follow_the_reference_while_gradients_and_rates_change(
    shape, low, generator, device, monkeypatch
):
    trained = Trained(shape, generator, device, monkeypatch, low=low)
    view = trained.weights[0].view
    Xs = [view(X) for X in trained.points()]
    Ms = [torch.zeros_like(X) for X in Xs]
    for lr in (1e-2, 1e-3, 1.0, 1e-2, 0.1):  # more places of gradients than are remembered
        trained.fill_gradients()
        trained.step(lr=lr)
        for n, weight in enumerate(trained.weights):
            G = view(weight.p.grad.cpu().float())
            D, _ = direction(G, Ms[n], Update(lr=lr, momentum=0.9))
            Xs[n], Ms[n] = polar_step(Xs[n], D, lr, tangent=True)
    for n, (weight, X) in enumerate(zip(trained.weights, trained.points(), strict=True)):
        assert_close("X", Xs[n], view(X), torch.float32)
        assert_close("M", Ms[n], view(trained.states[n]["momentum_buffer"]).cpu(), torch.float32)
        assert weight.p._version > 0
        if device == "cuda":  # the interpreter truncates to bfloat16
            assert not weight.is_behind(trained.states[n])
        if low is not None:
            assert_close("p", X.to(low), weight.p.cpu(), low)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("shape", [(9, 4), (2, 9, 4)], ids=str)
def test_what_is_not_finite_is_raised_by_a_later_step(shape, bad, generator, device, monkeypatch):
    trained = Trained(shape, generator, device, monkeypatch)
    trained.fill_gradients()
    trained.weights[1].p.grad.view(-1)[-1] = bad
    before = trained.points()
    trained.step(lr=0.1)
    if device == "cuda":
        torch.cuda.synchronize()
    after = trained.points()
    assert [torch.equal(x[-1], y[-1]) for x, y in zip(before, after, strict=True)] == [
        False, True, False,
    ]  # fmt: skip
    with pytest.raises(NonFiniteGradientError, match="gradient of weight 1 must be finite"):
        trained.executor.complain()
    trained.executor.complain()  # once


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_what_is_not_finite_is_left_out_and_counted(bad, generator, device, monkeypatch):
    trained = Trained((2, 9, 4), generator, device, monkeypatch, skip=True)
    trained.fill_gradients()
    trained.weights[1].p.grad[0, 2, 3] = bad
    before = trained.points()
    for _ in range(2):
        trained.step(lr=0.1)
    if device == "cuda":
        torch.cuda.synchronize()
    same = [torch.equal(x, y) for x, y in zip(before, trained.points(), strict=True)]
    assert same == [False, True, False]
    assert [int(state["skipped"]) for state in trained.states] == [0, 2, 0]
    assert not trained.states[1]["momentum_buffer"].any()
    trained.executor.complain()


@pytest.mark.parametrize(
    "shape, kind, retraction, options, expected",
    [
        ((1, 576, 64), {}, "polar", {}, True),
        ((3, 64, 64), {}, "polar", {"momentum": 0.9}, True),
        ((1, 65, 65), {}, "polar", {}, False),
        ((1, 1 << 14, 8), {}, "polar", {}, False),
        ((1, 64, 64), {"dtype": torch.float64}, "polar", {}, False),
        ((1, 64, 64), {"device": "cpu"}, "polar", {}, False),
        ((1, 64, 64), {}, "exp", {}, False),
        ((1, 64, 64), {}, "polar", {"momentum": 0.9, "nesterov": True}, False),
        ((1, 64, 64), {}, "polar", {"beta2": 0.9}, False),
    ],
    ids=str,
)
def test_small_polar_steps_of_float32_on_cuda_have_a_kernel(
    shape, kind, retraction, options, expected
):
    with FakeTensorMode():
        X = torch.empty(shape, **{"device": "cuda", "dtype": torch.float32, **kind})
        assert has_small_kernel(X, retraction, Update(lr=0.1, **options)) == expected
