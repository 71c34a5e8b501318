"""Exponential steps by all of the generator: what rounding adds up, and the polishes in turn."""

import math

import pytest
import torch
from torch import nn

from helpers import reasons_of
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.optim.drift import POLISH_EVERY


def weights(num, shape, generator, dtype=torch.float32):
    """Weights and gradients that stay the same."""
    params = []
    for _ in range(num):
        p = nn.Parameter(orthogonal_(torch.empty(shape, dtype=dtype), generator=generator))
        p.grad = torch.randn(shape, generator=generator).to(dtype)
        params.append(p)
    return params


def error(p):
    X = p.detach().double()
    X = X if X.shape[0] >= X.shape[1] else X.mT
    return float(torch.dist(X.mT @ X, torch.eye(X.shape[1]).double())) / math.sqrt(X.shape[1])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("lr", [1e-6, 1e-5, 1e-2])
@pytest.mark.parametrize(
    "shape, num", [((16, 8), 1), ((8, 16), 1), ((8, 8), 1), ((16, 8), 2), ((64, 48), 1)], ids=str
)
def test_equal_steps_stay_on_the_manifold_at_any_time(shape, num, lr, momentum, generator):
    params, worst = weights(num, shape, generator), 0.0
    optimizer = FlowSGD(params, lr=lr, momentum=momentum, block_size="dense")
    for _ in range(600):
        optimizer.step()
        worst = max(worst, *map(error, params))
    assert worst < 5e-6  # 6e-5 without a polish for 256 steps


def test_equal_steps_of_formed_factors_stay_on_the_manifold_at_any_time(generator):
    (p,) = weights(1, (16, 8), generator)
    p.grad, worst = None, 0.0
    factors = tuple(torch.randn(n, 2, generator=generator) for n in p.shape)
    optimizer = FlowSGD([p], lr=1e-6, momentum=0.9, block_size="dense")  # with the window's rank
    for _ in range(600):
        optimizer.step(factors={p: factors})
        worst = max(worst, error(p))
    assert "too many for factored ones" in reasons_of(optimizer)
    assert worst < 5e-6


@pytest.mark.parametrize("num", [1, 2])
@pytest.mark.parametrize("shape", [(8, 8), (9, 5), (5, 9), (2, 6, 4)], ids=str)
def test_weights_are_polished_by_their_own_count_and_check_every_is_not_asked(
    shape, num, generator
):
    params = weights(num + 1, shape, generator)
    optimizer, grad = FlowSGD(params, lr=0.0, block_size="dense", check_every=0), params[0].grad
    for step in range(2 * POLISH_EVERY - 1):  # the first weight is left out at steps of even number
        params[0].grad = grad if step % 2 else None
        if step == POLISH_EVERY:
            with torch.no_grad():
                for p in params:
                    p *= 1 + 4e-5
        optimizer.step()
    drifted = [p.detach().clone() for p in params]
    params[0].grad = grad
    optimizer.step()
    for p, before in zip(params, drifted, strict=True):
        assert (p.norm() - before.norm()).abs() > 2e-5 * p.norm()


@pytest.mark.parametrize(
    "shape, dtype, options",
    [
        ((9, 4), torch.float32, {}),  # thin steps take off the error of their point
        ((8, 8), torch.float32, {"retraction": "polar"}),
        ((8, 8), torch.float64, {}),
    ],
)
def test_other_steps_are_not_counted(shape, dtype, options, generator):
    (p,) = weights(1, shape, generator, dtype)
    optimizer = FlowSGD([p], lr=0.1, block_size="dense", **options)
    optimizer.step()
    assert optimizer.state[p]["turns"] == 0


@pytest.mark.parametrize("flow", [FlowSGD, FlowAdam])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_run_resumed_between_two_polishes_gives_the_same_bits(flow, dtype, generator, tmp_path):
    start, grads = weights(2, (8, 6), generator, dtype), generator.get_state()

    def run(resume):
        params = [nn.Parameter(p.detach().clone()) for p in start]
        gradients = torch.Generator()
        gradients.set_state(grads)
        optimizer = flow(params, lr=0.01, block_size="dense")
        for step in range(POLISH_EVERY + 30):
            if resume and step in (20, POLISH_EVERY, POLISH_EVERY + 1):
                torch.save({"o": optimizer.state_dict(), "p": params}, tmp_path / "state.pt")
                saved = torch.load(tmp_path / "state.pt", weights_only=True)
                params = [nn.Parameter(p.detach().clone()) for p in saved["p"]]
                optimizer = flow(params, lr=9.0, block_size="dense")
                optimizer.load_state_dict(saved["o"])
            for p in params:
                p.grad = torch.randn(p.shape, generator=gradients).to(dtype)
            if step % 3 == 0:
                params[0].grad = None
            optimizer.step()
        assert optimizer.state[params[1]]["turns"] == POLISH_EVERY + 30
        return params, [optimizer.state[p].get("master", p) for p in params]

    for kept, resumed in zip(run(False), run(True), strict=True):
        assert all(torch.equal(p, q) for p, q in zip(kept, resumed, strict=True))
