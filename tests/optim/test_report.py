"""Diagnoses against the steps they announce, and that asking changes nothing."""

import pytest
import torch
from torch import nn

from helpers import numbers_of, randn
from nets import Net, both
from skewflow.nn import orthogonal_
from skewflow.optim import CombinedOptimizer, FlowAdam, FlowSGD
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
        (2, HRegular(2)),
        (3, "sweep"),
        (3, HRegular(3)),
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
        (report,) = numbers_of(optimizer.report())
        assert torch.equal(p, before)
        optimizer.step()
        assert report.largest_angle == pytest.approx(turned_by(before, p.detach()), rel=1e-6)
        assert report.name == "W" and report.orthogonality_error < 1e-12


def test_asking_does_not_change_what_is_drawn(generator):
    ends = []
    for ask in (False, True):
        p = weight((8, 8), torch.Generator().manual_seed(3))
        optimizer = FlowAdam([p], lr=1e-2, block_size=2, sampler=HRegular(2))
        gradients = torch.Generator().manual_seed(4)
        for _ in range(4):
            p.grad = randn(8, 8, generator=gradients)
            if ask:
                optimizer.report()
            optimizer.step()
        ends.append(p.detach())
    assert torch.equal(*ends)


def test_variance_ratios_and_acceptance(generator):
    p = weight((8, 8), generator)
    p.grad = randn(8, 8, generator=generator)
    (uniform,) = numbers_of(FlowSGD([p], lr=0.1, block_size=2).report())
    assert uniform.variance_ratio == 7.0 and uniform.acceptance_rate == 1.0
    (dense,) = numbers_of(FlowSGD([p], lr=0.1, block_size="dense").report())
    assert dense.variance_ratio == dense.acceptance_rate == 1.0
    W = EdgeWeights(p.detach(), p.grad)
    exact = 1 + h_regular_variance(W, 2, "abs") / W.h_norm("square")
    (drawn,) = numbers_of(FlowSGD([p], lr=0.1, block_size=2, sampler=HRegular(2)).report())
    assert drawn.variance_ratio == pytest.approx(exact, rel=0.3)  # 16 draws, seeded
    (trials,) = numbers_of(
        FlowSGD([p], lr=0.1, block_size=2, sampler=HRegular(2, method="reject-1")).report()
    )
    assert 0.02 < trials.acceptance_rate < 0.6  # 1/7 on average


def test_counts_are_reported(generator):
    p = weight((6, 6), generator)
    optimizer = FlowSGD([p], lr=0.1, block_size=2, nonfinite="skip")
    p.grad = torch.full((6, 6), torch.nan, dtype=torch.float64)
    optimizer.step()
    p.grad = randn(6, 6, generator=generator)
    (report,) = numbers_of(optimizer.report())
    assert report.skipped == 1 and report.polishes == 0


@pytest.mark.parametrize("block_size", [2, "dense"])
def test_a_weight_that_joined_late_is_reported_by_its_own_steps(block_size, generator):
    p, late = weight((6, 6), generator), weight((6, 6), generator)
    optimizer = FlowAdam([p, late], lr=1e-3, block_size=block_size)
    for _ in range(40):
        p.grad = randn(6, 6, generator=generator)
        optimizer.step()
    late.grad = randn(6, 6, generator=generator)
    before = late.detach().clone()
    report = numbers_of(optimizer.report())[1]
    optimizer.step()
    assert report.largest_angle == pytest.approx(turned_by(before, late.detach()), rel=1e-6)


def test_the_report_is_flat_numbers_and_a_reason_for_each_weight(generator):
    p, q = weight((6, 6), generator), weight((9, 4), generator)
    optimizer = FlowSGD([{"params": [p]}, {"params": [q], "block_size": 3}], lr=0.1)
    before = optimizer.report()  # no gradient yet
    assert not [name for name in before if "angle" in name]
    p.grad = randn(6, 6, generator=generator)
    report = optimizer.report()
    assert all(type(value) in (int, float) for value in report.values())
    assert list(report.reasons) == ["parameter_0_of_group_0", "parameter_0_of_group_1"]
    assert {key for key in report if "angle" in key} == {"parameter_0_of_group_0/largest_angle"}
    assert report["parameter_0_of_group_1/block_size"] == 3
    printed = str(report).splitlines()
    assert "exact steps (polar)" in printed[0] and "blocks of 3 rows" in printed[2]
    assert "largest_angle" in printed[1] and "largest_angle" not in printed[3]


def test_a_report_of_factors_says_how_they_are_stepped_and_moves_nothing(generator):
    p = weight((40, 40), generator)
    optimizer = FlowSGD([("W", p)], lr=0.1, momentum=0.9, block_size="dense")
    factors = randn(40, 1, generator=generator), randn(40, 1, generator=generator)
    optimizer.step(factors={p: factors})
    before = p.detach().clone()
    for _ in range(2):
        report = optimizer.report()
        assert "factored steps" in report.reasons["W"] and report["W/orthogonality_error"] < 1e-12
    assert torch.equal(p, before)


def test_an_optimiser_of_several_reports_its_orthogonal_weights():
    net = Net()
    flow, rest = both(net)
    combined = CombinedOptimizer([rest, flow])
    assert combined.report() == flow.report()
    assert combined.report().reasons.keys() == {"turn.weight"}
