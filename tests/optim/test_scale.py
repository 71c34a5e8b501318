"""Weights with X^T X = c^2 I: the steps of X / c, and what is refused."""

import copy

import pytest
import torch
from torch import nn

from helpers import assert_close, randn, reasons_of
from skewflow.errors import NotOnManifoldError
from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import OrthogonalLinear, orthogonal_
from skewflow.optim import AngleSGD, FlowAdam, FlowSGD, NaturalSGD, capture_factors
from skewflow.samplers import HRegular

MAKES = {
    "FlowSGD": lambda ps, **o: FlowSGD(ps, lr=0.05, momentum=0.9, **o),
    "FlowAdam": lambda ps, **o: FlowAdam(ps, lr=0.05, eps=1e-30, **o),
    "AngleSGD": lambda ps, **o: AngleSGD(ps, lr=0.05, **o),
}
SHAPES = [(8, 8), (9, 4), (4, 9), (2, 7, 5), (6, 3, 3, 3)]
OPTIONS = [
    {"block_size": 2},
    {"block_size": 3, "nonfinite": "skip"},
    {"block_size": "dense"},
    {"block_size": "auto"},
    {"sampler": HRegular(2)},
]


def scaled(shape, c, generator, dtype=torch.float64):
    W = orthogonal_(torch.empty(shape, dtype=torch.float64), scale=c, generator=generator)
    return nn.Parameter(W.to(dtype))


def run(p, optimizer, gradients, factor=1.0):
    for G in gradients:
        p.grad = factor * G
        optimizer.step()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MAKES)
def test_steps_are_those_of_the_weight_over_its_scale(name, shape, options, generator):
    """The gradient of X / c is c times that of X; the lengths of gradients count for FlowSGD."""
    c = 3.0
    p = scaled(shape, c, generator)
    q = nn.Parameter(p.detach() / c)
    gradients = [randn(*shape, generator=generator) for _ in range(3)]
    run(p, MAKES[name]([p], scale=c, **options), gradients)
    run(q, MAKES[name]([q], **options), gradients, c)
    assert_close("p", c * q.detach(), p.detach(), factor=10)


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_keep_their_length(name, dtype, generator):
    p = scaled((12, 6), 0.5, generator, dtype)
    optimizer = MAKES[name]([p], scale=0.5, block_size=4, check_every=8)
    run(p, optimizer, [randn(12, 6, generator=generator).to(dtype) for _ in range(50)])
    found = float(orthogonality_error(as_matrices(p.detach().float()) / 0.5).max())
    assert found < (1e-5 if dtype == torch.float32 else 0.05)
    assert optimizer.report()["parameter_0_of_group_0/orthogonality_error"] < 1e-6


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_factors_and_captured_layers_take_the_same_steps(momentum, generator):
    c, options = 2.0, {"lr": 0.1, "momentum": momentum, "block_size": "dense"}
    p = scaled((40, 30), c, generator)
    layers = [OrthogonalLinear(30, 40, bias=False, dtype=torch.float64) for _ in range(2)]
    for layer in layers:
        layer.weight.data.copy_(p.detach())
    capture_factors(layers[0])
    captured, formed = (FlowSGD(layer.parameters(), scale=c, **options) for layer in layers)
    given = FlowSGD([p], scale=c, **options)
    for _ in range(3):
        x = randn(2, 30, generator=generator)
        for layer, optimizer in zip(layers, (captured, formed), strict=True):
            optimizer.zero_grad()
            layer(x).square().sum().backward()
        y = x @ p.detach().mT
        given.step(factors={p: ((2 * y).mT.contiguous(), x.mT.contiguous())})
        captured.step()
        formed.step()
    assert "factored" in reasons_of(captured)
    for found in (layers[0].weight, p):
        assert_close("W", layers[1].weight.detach(), found.detach(), factor=1e9 * momentum + 10)


def test_a_resumed_run_has_the_same_bits(generator):
    p = scaled((10, 10), 3.0, generator, torch.float32)
    optimizer = FlowSGD([p], lr=0.1, momentum=0.9, block_size=2, scale=3.0)
    gradients = [randn(10, 10, generator=generator, dtype=torch.float32) for _ in range(6)]
    run(p, optimizer, gradients[:3])
    q = nn.Parameter(p.detach().clone())
    other = FlowSGD([q], lr=0.1, momentum=0.9, block_size=2, scale=3.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(p, optimizer, gradients[3:])
    run(q, other, gradients[3:])
    assert torch.equal(p, q)


def test_what_other_code_writes_is_noticed(generator):
    p = scaled((8, 8), 4.0, generator)
    optimizer = FlowSGD([p], lr=1e-3, block_size=2, scale=4.0)
    run(p, optimizer, [randn(8, 8, generator=generator)])
    p.data.mul_(0.97)
    with pytest.warns(UserWarning, match="was written by something other"):
        run(p, optimizer, [randn(8, 8, generator=generator)])
    assert float(orthogonality_error(p.detach() / 4)) < 1e-10
    p.data.mul_(0.25)
    with pytest.raises(NotOnManifoldError, match="something other"):
        run(p, optimizer, [randn(8, 8, generator=generator)])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "scale, error, message",
    [
        (0.0, ValueError, "`scale` must be above 0"),
        (-2.0, ValueError, "`scale` must be at least 0: got -2.0"),
        (float("nan"), ValueError, "`scale` must be at least 0: got nan"),
        (float("inf"), ValueError, "`scale` must be finite"),
        ("2", TypeError, "`scale` must be a number"),
        (3.0, NotOnManifoldError, "over its scale 3 must be orthogonal.*with scale=3 on it"),
    ],
)
def test_wrong_scales_are_refused(scale, error, message, generator):
    p = scaled((6, 6), 2.0, generator)
    with pytest.raises(error, match=message):
        FlowSGD([p], lr=0.1, scale=scale)
    if error is ValueError:
        with pytest.raises(ValueError, match="`scale` must be above 0 and finite"):
            orthogonal_(torch.empty(3, 3), scale=scale)


@pytest.mark.bad_input
def test_a_scale_stays(generator):
    p = scaled((6, 6), 2.0, generator)
    optimizer = FlowSGD([p], lr=0.1, scale=2.0)
    before = p.detach().clone()
    other = FlowSGD([nn.Parameter(p.detach() / 2)], lr=0.1)
    with pytest.raises(ValueError, match="that of the loaded state, 2: got 1. Nothing was changed"):
        other.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["scale"] = 1.0
    with pytest.raises(ValueError, match="`scale` of a weight must stay.*has 2, its group 1"):
        run(p, optimizer, [randn(6, 6, generator=generator)])
    assert torch.equal(before, p)
    with pytest.raises(ValueError, match="`scale` is not an option of this optimiser"):
        NaturalSGD([{"params": [p], "scale": 2.0}], lr=0.1)


def test_a_model_that_is_cast_to_more_digits_goes_on_with_them(generator):
    p = scaled((9, 4), 2.0, generator, torch.float32)
    model = nn.ParameterList([p])
    optimizer = FlowSGD(model, lr=0.05, scale=2.0)
    run(p, optimizer, [randn(9, 4, generator=generator).float()])
    model.double()
    run(p, optimizer, [randn(9, 4, generator=generator) for _ in range(2)])
    assert optimizer.state[p]["master"].dtype == torch.float64
    assert orthogonality_error(p.detach() / 2) < 1e-12


def test_a_weight_that_other_code_has_spoilt_is_refused_with_a_way_out_that_works(generator):
    p = scaled((9, 4), 2.0, generator)
    optimizer = FlowSGD([("W", p)], lr=0.05, scale=2.0)
    with torch.no_grad():
        p.mul_(3)
    p.grad = randn(9, 4, generator=generator)
    with pytest.raises(NotOnManifoldError, match=r"W .* over its scale 2 .* with scale=2 on it"):
        optimizer.step()
    orthogonal_(p, scale=2.0)
    optimizer.step()
