"""Factors above the break-even: their gradient is formed, and takes the step of gradients."""

import copy

import pytest
import torch
from torch import nn

from helpers import randn, reasons_of
from skewflow.errors import NonFiniteGradientError
from skewflow.nn import orthogonal_
from skewflow.optim import AngleSGD, FlowSGD
from skewflow.optim.gradient import FactorReader


def weight(shape, generator, dtype=torch.float32):
    return nn.Parameter(orthogonal_(torch.empty(shape, dtype=dtype), generator=generator))


def factors(p, r, generator):
    *batch, m, n = p.shape
    return tuple(randn(*batch, side, r, generator=generator, dtype=p.dtype) for side in (m, n))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"maximize": True},
                                     {"block_size": "dense"}], ids=str)  # fmt: skip
@pytest.mark.parametrize("shape", [(24, 24), (30, 9), (9, 30), (2, 12, 7)], ids=str)
def test_the_step_is_bit_for_bit_that_of_the_gradient(shape, options, generator):
    p = weight(shape, generator)
    q = copy.deepcopy(p)
    ours, theirs = (FlowSGD([w], lr=0.01, **options) for w in (p, q))
    for _ in range(5):
        A, B = factors(p, 24, generator)
        ours.step(factors={p: (A, B)})
        q.grad = (B @ A.mT).mT if shape == (9, 30) else A @ B.mT  # as the taller matrix
        theirs.step()
        assert torch.equal(p, q) and p.grad is None


def test_the_gradient_lies_always_in_the_same_memory(generator, monkeypatch):
    seen, product = [], FactorReader._product

    def watched(*args):
        grad = product(*args)
        seen.append(grad.data_ptr())
        return grad

    monkeypatch.setattr(FactorReader, "_product", watched)
    p = weight((16, 16), generator)
    optimizer = FlowSGD([p], lr=0.01)
    for r in (16, 12, 16):
        optimizer.step(factors={p: factors(p, r, generator)})
        torch.empty(16, 16)  # what takes freed memory
    assert len(seen) == 3 and len(set(seen)) == 1


def test_a_weight_that_changes_its_dtype_gets_other_memory(generator):
    p = weight((16, 16), generator)
    optimizer = FlowSGD([p], lr=0.01)
    for dtype in (torch.float32, torch.float64, torch.float32):
        p.data = p.data.to(dtype)
        before = p.detach().clone()
        optimizer.step(factors={p: factors(p, 16, generator)})
        assert p.dtype == dtype and not torch.equal(p, before)


def test_large_weights_still_take_the_exact_step(generator, monkeypatch):
    """Gradients of theirs would have blocks, which make less progress."""
    monkeypatch.setattr("skewflow.optim.auto.MOST_OPERATIONS", {"cpu": 0.0, "cuda": 0.0})
    p = weight((96, 48), generator)
    q = copy.deepcopy(p)
    A, B = factors(p, 40, generator)
    AngleSGD([p], momentum=0.0, angle="rms").step(factors={p: (A, B)})
    q.grad = A @ B.mT
    AngleSGD([q], momentum=0.0, angle="rms", block_size="dense", retraction="polar").step()
    assert torch.allclose(p, q, atol=1e-6)


@pytest.mark.bad_input
def test_factors_that_are_not_finite_are_refused_before_any_step(generator):
    p, q = weight((16, 16), generator), weight((16, 16), generator)
    before = p.detach().clone()
    given = {w: factors(w, 16, generator) for w in (p, q)}
    given[q][0][3, 2] = torch.nan
    optimizer = FlowSGD([("first", p), ("second", q)], lr=0.01)
    with pytest.raises(NonFiniteGradientError, match="factors of second"):
        optimizer.step(factors=given)
    assert torch.equal(p, before) and p.grad is None and q.grad is None
    skipping = FlowSGD([p, q], lr=0.01, nonfinite="skip")
    skipping.step(factors=given)
    assert [int(skipping.state[w]["skipped"]) for w in (p, q)] == [0, 1]


def test_a_step_that_failed_does_not_decide_how_later_ones_go(generator):
    start, other = (orthogonal_(torch.empty(64, 64), generator=generator) for _ in range(2))
    many, few = factors(start, 60, generator), [factors(start, 1, generator) for _ in range(4)]
    ends = []
    for fails in (False, True):
        p, q = nn.Parameter(start.clone()), nn.Parameter(other.clone())
        optimizer = FlowSGD([p, q], lr=0.1, momentum=0.9)
        if fails:
            q.grad = torch.full((64, 64), torch.nan)
            with pytest.raises(NonFiniteGradientError):
                optimizer.step(factors={p: many})
            optimizer.zero_grad()
        for pair in few:
            optimizer.step(factors={p: pair})
        assert "factored steps" in reasons_of(optimizer)
        ends.append(p.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("size", [1e-8, 1e5])
def test_the_gradient_of_a_half_weight_is_not_rounded(size, momentum, generator):
    p = nn.Parameter(weight((32, 32), generator).detach().half())
    before = p.detach().clone()
    A, B = (F * size**0.5 for F in factors(before.float(), 30, generator))
    FlowSGD([p], lr=0.001 / size, momentum=momentum).step(factors={p: (A, B)})
    moved = (p - before).abs().max()
    assert 0.001 < moved < 1
