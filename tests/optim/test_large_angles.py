"""The warning where blocks of the unbiased law turn a plane by more than a radian."""

import re
import warnings

import pytest
import torch
from torch import nn

from helpers import numbers_of, randn
from skewflow.nn import orthogonal_
from skewflow.optim import AngleSGD, CombinedOptimizer, FlowAdam, FlowSGD
from skewflow.samplers import HRegular

WHAT = re.compile(r"a plane of W by (\S+) radians.* lr=(\S+) turns none")


def begun(generator, flow=FlowSGD, d=40, **options):
    p = nn.Parameter(orthogonal_(torch.empty(d, d), generator=generator))
    p.grad = randn(d, d, generator=generator, dtype=torch.float32)
    return p, flow([("W", p)], **options)


def told(optimizer):
    """What a step warns of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        optimizer.step()
    return [str(w.message) for w in found]


@pytest.mark.parametrize(
    "options", [{"block_size": 2}, {"block_size": 8}, {"sampler": HRegular(4)}]
)
@pytest.mark.parametrize("flow", [FlowSGD, FlowAdam])
def test_it_names_the_weight_and_a_rate_that_is_small_enough(flow, options, generator):
    options = {**options, "lr": 1.0}
    _, optimizer = begun(generator, flow, **options)
    (report,) = numbers_of(optimizer.report())
    (message,) = told(optimizer)
    angle, lr = (float(number) for number in WHAT.search(message).groups())
    if "sampler" not in options:  # which draws anew
        assert angle == pytest.approx(report.largest_angle, rel=0.01)
    assert lr * angle == pytest.approx(1.0, rel=0.06)
    assert not told(optimizer)  # once


def test_it_names_the_line_that_calls_step(generator):
    _, optimizer = begun(generator, block_size=2, lr=1.0)
    with pytest.warns(UserWarning, match="turns a plane") as found:
        optimizer.step()
    assert [w.filename for w in found] == [__file__]


def test_it_names_that_line_also_under_a_scheduler(generator):
    _, optimizer = begun(generator, block_size=2, lr=1.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match="turns a plane") as found:
        CombinedOptimizer([optimizer]).step()
    assert [w.filename for w in found] == [__file__]


def test_it_comes_when_angles_grow_late(generator):
    p, optimizer = begun(generator, block_size=2, lr=1e-4)
    for _ in range(5):
        assert not told(optimizer)
    p.grad *= 1e5
    assert [len(told(optimizer)) for _ in range(5)] == [0, 0, 1, 0, 0]


def test_rates_that_turn_little_exact_steps_and_angles_are_silent(generator):
    for options in ({"block_size": 8, "lr": 1e-4}, {"block_size": "dense", "lr": 10.0}):
        assert not told(begun(generator, **options)[1])
    assert not told(begun(generator, AngleSGD, block_size=2, lr=2.0)[1])


def test_a_large_block_counts_by_its_planes_not_by_its_norm(generator):
    """The norm of all planes together is larger than the angle of each."""
    _, optimizer = begun(generator, block_size=20, lr=1e-3)
    (report,) = numbers_of(optimizer.report())
    (group,) = optimizer.param_groups
    group["lr"] *= 0.9 / report.largest_angle
    assert not told(optimizer)


def test_as_an_error_it_leaves_everything_as_it_was(generator):
    p, optimizer = begun(generator, block_size=2, lr=1.0)
    before = p.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="turns a plane"):
            optimizer.step()
    assert torch.equal(before, p)
