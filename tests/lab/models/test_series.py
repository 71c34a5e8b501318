"""Exact steps by a truncated series: the exact step where it converges, and off it elsewhere."""

import copy

import pytest
import torch

from helpers import assert_close
from skewflow.geometry import expm, haar, taylor
from skewflow.nn import OrthogonalConv2d, OrthogonalLinear
from skewflow.optim import FlowSGD
from skewflow_lab.models.methods import largest_error, make_optimizers
from skewflow_lab.models.series import SeriesSGD, apply_series


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        OrthogonalConv2d(3, 8, 3), torch.nn.Flatten(), OrthogonalLinear(32, 20)
    )


def series_of(net):
    weights = [p for p in net.parameters() if p.ndim > 1]
    return SeriesSGD(weights, 1e-3, terms=20, momentum=0.9)


def train(optimizer, net, num_steps=6):
    x = torch.randn(16, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(num_steps):
        net.zero_grad()
        net(x).pow(3).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("terms", [0, 1, 2, 5, 30])
def test_the_series_is_that_of_geometry_applied_to_the_point(terms, generator):
    A = torch.randn(2, 7, 7, generator=generator, dtype=torch.float64)
    A = A - A.mT
    X = haar(7, 3, generator=generator, dtype=torch.float64).expand(2, 7, 3)
    assert_close("series", apply_series(A, X, terms), taylor(A, terms) @ X, torch.float64)


def test_long_series_take_the_steps_of_flow_sgd(generator):
    ours, theirs = model(), model()
    weights = [[p for p in net.parameters() if p.ndim > 1] for net in (ours, theirs)]
    series = SeriesSGD(weights[0], 1e-3, terms=100, momentum=0.9)
    train(series, ours)
    train(FlowSGD(weights[1], 1e-3, momentum=0.9, block_size="dense"), theirs)
    for p, q in zip(*weights, strict=True):
        assert_close("weights", p, q, torch.float32, factor=10)  # six steps with momentum
    assert largest_error(ours) < 1e-5 and 0 < series.largest_norm() < 10


def test_at_large_norms_no_length_is_enough_and_nothing_brings_the_weight_back(generator):
    A = torch.randn(20, 20, generator=generator)
    A = A - A.mT
    A *= 40 / torch.linalg.matrix_norm(A, 2)
    X = torch.eye(20)
    assert (expm(A) @ X - expm(A.double()).float()).abs().max() < 1e-4
    for terms in (20, 100, 200):
        assert (apply_series(A, X, terms) - expm(A)).abs().max() > 1
    net = model()
    (series, _) = make_optimizers(net, "taylor20", lr=0.0, orthogonal_lr=0.1)
    train(series, net, 1)
    assert not largest_error(net) < 1e-2


def test_a_stopped_series_goes_on_to_the_same_bits():
    whole, first = model(), model()
    optimizers = [series_of(net) for net in (whole, first)]
    train(optimizers[0], whole)
    train(optimizers[1], first, 3)
    again = copy.deepcopy(first)
    resumed = series_of(again)
    resumed.load_state_dict(optimizers[1].state_dict())
    train(resumed, again, 3)
    assert all(map(torch.equal, whole.parameters(), again.parameters()))
    assert resumed.largest_norm() == optimizers[0].largest_norm()
