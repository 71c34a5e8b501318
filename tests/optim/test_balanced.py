"""The optimisers with the sampler `Balanced`."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from helpers import assert_close, randn, random_stiefel
from skewflow.errors import BalanceError
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.samplers import Balanced


def absolute(w):
    """h = |x| as a function, which is not compiled."""
    return w.abs()


def weight(d, k, generator, dtype=torch.float32):
    p = nn.Parameter(random_stiefel(d, k, generator=generator, dtype=dtype))
    p.grad = randn(d, k, generator=generator, dtype=dtype)
    return p


@pytest.mark.parametrize("d, k", [(30, 30), (31, 7)])
@pytest.mark.parametrize(
    "make",
    [
        lambda ps, **o: FlowSGD(ps, 0.01, **o),
        lambda ps, **o: FlowSGD(ps, 0.01, momentum=0.9, nesterov=True, maximize=True, **o),
        lambda ps, **o: FlowSGD(ps, 0.01, momentum=0.9, retraction="cayley", **o),
        lambda ps, **o: FlowAdam(ps, 0.01, **o),
    ],
    ids=["plain", "nesterov", "cayley", "adam"],
)
def test_compiled_steps_are_the_plain_ones(make, d, k, generator):
    p = weight(d, k, generator, torch.float64)
    q = nn.Parameter(p.detach().clone())
    q.grad = p.grad.clone()
    compiled = make([p], block_size=2, sampler=Balanced(2))
    plain = make([q], block_size=2, sampler=Balanced(2, absolute))
    for _ in range(5):
        compiled.step()
        plain.step()
    assert_close("weight", q.detach(), p.detach(), factor=10)  # five steps of rounding
    assert_close("gram", torch.eye(k), p.detach().mT @ p.detach())


def test_wide_weights_and_batches_stay_orthogonal_and_move(generator):
    wide = nn.Parameter(weight(24, 10, generator).detach().mT.contiguous())
    batch = nn.Parameter(torch.stack([weight(12, 12, generator).detach() for _ in range(3)]))
    for p in (wide, batch):
        p.grad = randn(*p.shape, generator=generator, dtype=torch.float32)
    before = [p.detach().clone() for p in (wide, batch)]
    optimizer = FlowSGD([wide, batch], 0.01, block_size=2, sampler=Balanced(2))
    for _ in range(20):
        optimizer.step()
    assert_close("wide", torch.eye(10), wide @ wide.mT, torch.float32)
    assert_close("batch", torch.eye(12).expand(3, -1, -1), batch.mT @ batch, torch.float32)
    assert all(not torch.equal(a, b.detach()) for a, b in zip(before, (wide, batch), strict=True))


def test_a_resumed_run_goes_on_with_the_same_bits(generator):
    p = weight(20, 20, generator)
    optimizer = FlowSGD([p], 0.01, momentum=0.9, block_size=2, sampler=Balanced(2))
    optimizer.step()
    q = nn.Parameter(p.detach().clone())
    q.grad = p.grad.clone()
    resumed = FlowSGD([q], 0.01, momentum=0.9, block_size=2, sampler=Balanced(2))
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    for _ in range(3):
        optimizer.step()
        resumed.step()
    assert torch.equal(p, q)


def test_a_descent_with_the_balanced_sampler_reaches_the_minimum(generator):
    target = random_stiefel(16, 16, generator=generator, dtype=torch.float64)
    if torch.linalg.det(target) < 0:
        target[0] *= -1
    p = nn.Parameter(torch.eye(16, dtype=torch.float64))
    optimizer = FlowSGD([p], 0.01, block_size=2, sampler=Balanced(2))
    for _ in range(2000):
        p.grad = p.detach() - target
        optimizer.step()
    assert (p - target).detach().norm() < 0.1


@pytest.mark.bad_input
def test_a_gradient_that_is_not_balanced_is_refused_before_the_weight_moves():
    p = nn.Parameter(torch.eye(200))
    p.grad = torch.zeros(200, 200)
    p.grad[0, 1:] = 1.0  # one row and column of Omega: 1 % of its entries
    before = p.detach().clone()
    optimizer = FlowSGD([p], 0.01, block_size=2, sampler=Balanced(2, alpha=0.5, beta=0.5))
    with pytest.raises(BalanceError, match="no h may exceed 8 times its mean"):
        optimizer.step()
    assert torch.equal(p, before)
