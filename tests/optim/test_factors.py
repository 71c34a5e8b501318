"""Steps by factors: momentum, state, and what is refused."""

import copy
import io

import pytest
import torch
from torch import nn

from helpers import assert_close, randn
from skewflow.errors import FactorError, NonFiniteGradientError
from skewflow.geometry import orthogonality_error
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.optim._factored import FactoredStep, is_worth_it

SHAPES = [(24, 24), (30, 9), (9, 30), (2, 12, 7), (2, 7, 12)]
DENSE = {"lr": 0.1, "block_size": "dense"}


def weight(shape, generator, dtype=torch.float64):
    return nn.Parameter(orthogonal_(torch.empty(shape, dtype=dtype), generator=generator))


def factors(p, r, generator):
    *batch, m, n = p.shape
    A = randn(*batch, m, r, generator=generator, dtype=p.dtype)
    return A, randn(*batch, n, r, generator=generator, dtype=p.dtype) / (m * n) ** 0.5


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("r", [1, 2, 20])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_by_factors_is_the_step_by_their_product(shape, r, maximize, generator):
    p = weight(shape, generator)
    q = copy.deepcopy(p)
    A, B = factors(p, r, generator)
    FlowSGD([p], **DENSE, maximize=maximize).step(factors={p: (A, B)})
    q.grad = A @ B.mT
    FlowSGD([q], **DENSE, maximize=maximize).step()
    assert_close("p", q.detach(), p.detach())
    assert p.grad is None


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("ranks", [(2, 2, 2, 2, 2), (1, 3, 2, 1, 4)], ids=str)
def test_momentum_is_the_sum_over_the_window(ranks, nesterov, generator):
    p = weight((60, 60), generator)
    q, window, mu = copy.deepcopy(p), 3, 0.9
    optimizer = FlowSGD([p], **DENSE, momentum=mu, nesterov=nesterov, factor_window=window)
    past = []
    for r in ranks:
        A, B = factors(p, r, generator)
        optimizer.step(factors={p: (A, B)})
        past = [A @ B.mT, *past][:window]
        M = sum(mu**s * G for s, G in enumerate(past))
        q.grad = past[0] + mu * M if nesterov else M
        FlowSGD([q], **DENSE).step()
        assert_close("p", q.detach(), p.detach())


def test_a_vanishing_momentum_with_nesterov_is_none(generator):
    p = weight((60, 60), generator, torch.float32)
    q, given = copy.deepcopy(p), factors(p, 2, generator)
    FlowSGD([p], **DENSE, momentum=1e-45, nesterov=True).step(factors={p: given})
    FlowSGD([q], **DENSE).step(factors={q: given})
    assert_close("p", q.detach(), p.detach(), torch.float32)


def test_a_window_as_long_as_the_run_is_the_momentum_of_gradients(generator):
    p = weight((60, 20), generator)
    q = copy.deepcopy(p)
    ours = FlowSGD([p], **DENSE, momentum=0.9, factor_window=5)
    theirs = FlowSGD([q], **DENSE, momentum=0.9)
    for _ in range(5):
        A, B = factors(p, 1, generator)
        ours.step(factors={p: (A, B)})
        q.grad = A @ B.mT
        theirs.step()
        assert_close("p", q.detach(), p.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_gives_the_same_bits(dtype, generator):
    def run(resume):
        g = torch.Generator().manual_seed(0)
        p = weight((40, 12), g, torch.float32)
        p = nn.Parameter(p.detach().to(dtype))
        make = lambda p: FlowSGD([p], **DENSE, momentum=0.9, guard_every=2)  # noqa: E731
        optimizer = make(p)
        for step in range(8):
            if resume and step == 5:
                file = io.BytesIO()
                torch.save({"o": optimizer.state_dict(), "p": p.detach()}, file)
                file.seek(0)
                saved = torch.load(file, weights_only=True)
                p = nn.Parameter(saved["p"])
                optimizer = make(p)
                optimizer.load_state_dict(saved["o"])
            optimizer.step(factors={p: factors(p, 1, g)})
        return p

    assert torch.equal(run(False), run(True))


def test_a_state_of_factors_of_another_shape_is_refused(generator):
    p, q = weight((40, 12), generator), weight((40, 13), generator)
    optimizer = FlowSGD([p], **DENSE, momentum=0.9)
    optimizer.step(factors={p: factors(p, 1, generator)})
    with pytest.raises(ValueError, match="`factors_b` of parameter 0 .*Nothing was changed"):
        FlowSGD([q], **DENSE, momentum=0.9).load_state_dict(optimizer.state_dict())


def test_the_guard_looks_at_factored_weights(generator):
    p = weight((40, 40), generator, torch.float32)
    optimizer = FlowSGD([p], **DENSE, guard_every=2)
    with torch.no_grad():
        p *= 1 + 1e-4
    for _ in range(2):
        optimizer.step(factors={p: factors(p, 1, generator)})
    assert orthogonality_error(p.detach()) < 1e-5
    assert optimizer.state[p]["polishes"] == 1


def test_large_ranks_take_the_dense_step(generator, monkeypatch):
    assert is_worth_it(8, 256, 256, torch.device("cpu"))
    assert not is_worth_it(256, 256, 256, torch.device("cpu"))
    monkeypatch.setattr(FactoredStep, "__call__", lambda *args: pytest.fail("factored"))
    p = weight((12, 12), generator)
    FlowSGD([p], **DENSE).step(factors={p: factors(p, 12, generator)})


BAD = [
    ({"block_size": 2}, None, "is the exact exponential: .* block_size=2"),
    ({"retraction": "polar"}, None, "is the exact exponential: .* retraction='polar'"),
    ({}, lambda A, B: (A[:, :1], B), r"must have the shapes \(12, 'r'\) and \(12, 'r'\)"),
    ({}, lambda A, B: (A[:5], B), "must have the shapes"),
    ({}, lambda A, B: (A[:, :0], B[:, :0]), "with one r >= 1"),
    ({}, lambda A, B: (A, B, A), r"must be a pair of tensors \(A, B\) .*: got a tuple"),
    ({}, lambda A, B: (A, B.to_sparse()), "must be dense tensors .* torch.sparse_coo"),
    ({}, lambda A, B: (A.long(), B), "of real floating-point numbers on cpu: got torch.int64"),
]


@pytest.mark.bad_input
@pytest.mark.parametrize("options, change, message", BAD)
def test_factors_that_do_not_fit_are_refused_and_nothing_changes(
    options, change, message, generator
):
    p = weight((12, 12), generator)
    before, given = p.detach().clone(), factors(p, 2, generator)
    given = change(*given) if change else given
    with pytest.raises(FactorError, match=message):
        FlowSGD([p], **{**DENSE, **options}).step(factors={p: given})
    assert torch.equal(p, before)


@pytest.mark.bad_input
def test_what_else_is_refused(generator):
    p, q, c = (
        weight((12, 12), generator),
        weight((12, 12), generator),
        weight((9, 1, 3, 3), generator),
    )
    given = factors(p, 2, generator)
    optimizer = FlowSGD([("p", p)], **DENSE)
    with pytest.raises(FactorError, match="got a Parameter of shape .* that it does not have"):
        optimizer.step(factors={q: given})
    with pytest.raises(FactorError, match="keys of `factors` must be parameters .*: got a str"):
        optimizer.step(factors={"p": given})
    p.grad = torch.ones_like(p)
    with pytest.raises(FactorError, match="p must have one source of its gradient"):
        optimizer.step(factors={p: given})
    with pytest.raises(FactorError, match="factors need FlowSGD"):
        FlowAdam([q], lr=0.1, block_size="dense").step(factors={q: given})
    with pytest.raises(FactorError, match="factors need a matrix"):
        FlowSGD([c], **DENSE).step(factors={c: given})
    with pytest.raises(ValueError, match="`factor_window` must be a whole number"):
        FlowSGD([q], **DENSE, factor_window=0)


@pytest.mark.bad_input
def test_momentum_of_gradients_and_of_factors_do_not_mix(generator):
    p = weight((12, 12), generator)
    given = factors(p, 2, generator)
    optimizer = FlowSGD([p], **DENSE, momentum=0.9)
    optimizer.step(factors={p: given})
    p.grad = torch.ones_like(p)
    before = p.detach().clone()
    with pytest.raises(FactorError, match="its momentum is that of factors"):
        optimizer.step()
    optimizer = FlowSGD([p], **DENSE, momentum=0.9)
    optimizer.step()
    p.grad = None
    before = p.detach().clone()
    with pytest.raises(FactorError, match="its momentum is that of gradients"):
        optimizer.step(factors={p: given})
    assert torch.equal(p, before)


@pytest.mark.bad_input
def test_factors_refused_beside_a_gradient_are_taken_without_it(generator):
    p = weight((12, 12), generator)
    given = factors(p, 2, generator)
    optimizer = FlowSGD([p], **DENSE, momentum=0.9)
    p.grad = torch.ones_like(p)
    with pytest.raises(FactorError, match="must have one source of its gradient"):
        optimizer.step(factors={p: given})
    assert not optimizer.state
    p.grad = None
    optimizer.step(factors={p: given})


@pytest.mark.bad_input
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_factors_whose_squares_overflow_are_refused(scale, generator):
    p = weight((12, 12), generator)
    A, B = factors(p, 2, generator)
    with pytest.raises(NonFiniteGradientError, match="must be finite and below 1e\\+100"):
        FlowSGD([p], **DENSE).step(factors={p: (scale * A, B / scale)})


@pytest.mark.bad_input
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e80])
def test_factors_that_are_not_finite_raise_or_are_skipped(bad, generator):
    p, q = weight((12, 12), generator), weight((12, 12), generator)
    given = {p: factors(p, 2, generator), q: factors(q, 2, generator)}
    given[q][0][0, 0] = given[q][1][0, 0] = bad
    before = p.detach().clone(), q.detach().clone()
    with pytest.raises(NonFiniteGradientError, match="factors of second, .* must be finite"):
        FlowSGD([("first", p), ("second", q)], **DENSE, momentum=0.9).step(factors=given)
    assert torch.equal(p, before[0]) and torch.equal(q, before[1])
    optimizer = FlowSGD([p, q], **DENSE, nonfinite="skip")
    optimizer.step(factors=given)
    assert not torch.equal(p, before[0]) and torch.equal(q, before[1])
    assert [int(optimizer.state[r]["skipped"]) for r in (p, q)] == [0, 1]
