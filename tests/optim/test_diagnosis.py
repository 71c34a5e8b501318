"""Diagnoses against the steps they announce, and that asking changes nothing."""

import pytest
import torch
from torch import nn

from helpers import randn
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.samplers import HRegular
from skewflow.tournaments import EdgeWeights
from skewflow.tournaments.theory import h_regular_variance


def weight(shape, generator):
    return nn.Parameter(orthogonal_(torch.empty(shape, dtype=torch.float64), generator=generator))


def turned_by(before, after):
    """The largest angle of the rotation between two square matrices."""
    return torch.linalg.eigvals(after @ before.mT).angle().abs().max().item()


@pytest.mark.parametrize(
    "block_size, sampler",
    [
        (2, "sweep"),
        (2, "uniform"),
        (2, "h_regular"),
        (3, "sweep"),
        (3, "h_regular"),
        ("dense", "sweep"),
    ],
)
@pytest.mark.parametrize("make", [FlowSGD, FlowAdam])
def test_the_next_step_turns_by_the_announced_angle(make, sampler, block_size, generator):
    p = weight((9, 9), generator)
    optimizer = make([("W", p)], lr=1e-3, block_size=block_size, sampler=sampler)
    for _ in range(3):
        p.grad = randn(9, 9, generator=generator)
        before = p.detach().clone()
        (report,) = optimizer.diagnose()
        assert torch.equal(p, before)
        optimizer.step()
        assert report.largest_angle == pytest.approx(turned_by(before, p.detach()), rel=1e-6)
        assert report.name == "W" and report.orthogonality_error < 1e-12


def test_asking_does_not_change_what_is_drawn(generator):
    ends = []
    for ask in (False, True):
        p = weight((8, 8), torch.Generator().manual_seed(3))
        optimizer = FlowAdam([p], lr=1e-2, block_size=2, sampler="h_regular")
        gradients = torch.Generator().manual_seed(4)
        for _ in range(4):
            p.grad = randn(8, 8, generator=gradients)
            if ask:
                optimizer.diagnose()
            optimizer.step()
        ends.append(p.detach())
    assert torch.equal(*ends)


def test_variance_ratios_and_acceptance(generator):
    p = weight((8, 8), generator)
    p.grad = randn(8, 8, generator=generator)
    (uniform,) = FlowSGD([p], lr=0.1, block_size=2).diagnose()
    assert uniform.variance_ratio == 7.0 and uniform.acceptance_rate == 1.0
    (dense,) = FlowSGD([p], lr=0.1, block_size="dense").diagnose()
    assert dense.variance_ratio == dense.acceptance_rate == 1.0
    W = EdgeWeights(p.detach(), p.grad)
    exact = 1 + h_regular_variance(W, 2, "abs") / W.h_norm("square")
    (drawn,) = FlowSGD([p], lr=0.1, block_size=2, sampler=HRegular(2)).diagnose()
    assert drawn.variance_ratio == pytest.approx(exact, rel=0.3)  # 16 draws, seeded
    (trials,) = FlowSGD(
        [p], lr=0.1, block_size=2, sampler=HRegular(2, method="reject-1")
    ).diagnose()
    assert 0.02 < trials.acceptance_rate < 0.6  # 1/7 on average


def test_counts_are_reported(generator):
    p = weight((6, 6), generator)
    optimizer = FlowSGD([p], lr=0.1, block_size=2, nonfinite="skip")
    p.grad = torch.full((6, 6), torch.nan, dtype=torch.float64)
    optimizer.step()
    p.grad = randn(6, 6, generator=generator)
    (report,) = optimizer.diagnose()
    assert report.skipped == 1 and report.polishes == 0


@pytest.mark.parametrize("block_size", [2, "dense"])
def test_a_weight_that_joined_late_is_diagnosed_by_its_own_steps(block_size, generator):
    p, late = weight((6, 6), generator), weight((6, 6), generator)
    optimizer = FlowAdam([p, late], lr=1e-3, block_size=block_size)
    for _ in range(40):
        p.grad = randn(6, 6, generator=generator)
        optimizer.step()
    late.grad = randn(6, 6, generator=generator)
    before = late.detach().clone()
    report = optimizer.diagnose()[1]
    optimizer.step()
    assert report.largest_angle == pytest.approx(turned_by(before, late.detach()), rel=1e-6)
