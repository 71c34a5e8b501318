"""Steps by factors: momentum, state, and what is refused."""

import copy
import io

import pytest
import torch
from torch import nn

from helpers import assert_close, randn
from skewflow.errors import FactorError, NonFiniteGradientError
from skewflow.geometry import tangent_project
from skewflow.kernels.rotate_factored.dispatch import FactoredStep, is_worth_it
from skewflow.kernels.tangent import tangent_factors
from skewflow.kernels.update import Update
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.optim.executors.low_rank_momentum import with_momentum

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


def product(A, B):
    return A @ B.mT


def tangent_part(p, G):
    """Of the matrices that the weight is seen as."""
    X = p.detach()
    wide = X.shape[-2] < X.shape[-1]
    return tangent_project(X.mT, G.mT).mT if wide else tangent_project(X, G)


def stored(optimizer, p):
    """What the momentum of factors adds up to, as a weight."""
    state = optimizer.state[p]
    M = product(state["factors_a"], state["factors_b"])
    return (M.mT if p.shape[-2] < p.shape[-1] else M).reshape(p.shape)


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"maximize": True}], ids=str)
@pytest.mark.parametrize("ranks", [(2, 2, 2, 2, 2), (1, 3, 2, 1, 4)], ids=str)
@pytest.mark.parametrize("shape", [(60, 60), (12, 60), (2, 60, 30)], ids=str)
def test_momentum_is_the_sum_of_tangent_parts_over_the_window(shape, ranks, options, generator):
    p = weight(shape, generator)
    q, window, mu, past = copy.deepcopy(p), 3, 0.9, []
    optimizer = FlowSGD([p], **DENSE, momentum=mu, factor_window=window, **options)
    for r in ranks:
        A, B = factors(p, r, generator)
        G, T = product(A, B), tangent_part(p, product(A, B))
        optimizer.step(factors={p: (A, B)})
        M = G + sum(mu**s * part for s, part in enumerate(past, start=1))
        past = [T, *past][: window - 1]
        q.grad = G + mu * M if "nesterov" in options else M
        FlowSGD([q], **DENSE, maximize="maximize" in options).step()
        assert_close("p", q.detach(), p.detach())
        sign = -1 if "maximize" in options else 1
        assert_close("M", sign * sum(mu**s * T for s, T in enumerate(past)), stored(optimizer, p))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_factors_of_a_tangent_part_are_exact(shape, generator):
    p = weight(shape, generator)
    A, B = factors(p, 2, generator)
    expected = tangent_part(p, product(A, B))
    optimizer = FlowSGD([p], **DENSE, momentum=0.9)
    optimizer.step(factors={p: (A, B)})
    assert_close("M", expected, stored(optimizer, p))
    assert optimizer.state[p]["factors_a"].shape[-1] == 4


def test_the_rank_follows_what_is_in_the_window(generator):
    p = weight((60, 60), generator)
    optimizer = FlowSGD([p], **DENSE, momentum=0.9, factor_window=3)
    seen = []
    for r in (1, 9, 1, 2, 1):
        optimizer.step(factors={p: factors(p, r, generator)})
        state = optimizer.state[p]
        seen.append(state["factor_ranks"])
        assert state["factors_a"].shape[-1] == state["factors_b"].shape[-1] == sum(seen[-1])
    assert seen == [[2], [18, 2], [2, 18], [4, 2], [2, 4]]
    optimizer.param_groups[0]["factor_window"] = 2
    optimizer.step(factors={p: factors(p, 3, generator)})
    assert state["factor_ranks"] == [6]
    optimizer.param_groups[0]["factor_window"] = 1
    optimizer.step(factors={p: factors(p, 3, generator)})
    assert state["factor_ranks"] == [] and state["factors_a"].untyped_storage().size() == 0


@pytest.mark.parametrize("ranks", [(2, 2, 2), (1, 2, 3)], ids=str)
def test_factors_known_only_later_not_to_be_finite_stay_out_of_the_momentum(ranks, generator):
    p = weight((20, 20), generator)
    optimizer = FlowSGD([p], **DENSE, momentum=0.9, factor_window=3)
    for r in ranks[:2]:
        optimizer.step(factors={p: factors(p, r, generator)})
    state = optimizer.state[p]
    before, newest = copy.deepcopy(state), 2 * ranks[1]
    A, B = (F[None] for F in factors(p, ranks[2], generator))
    bad = tangent_factors(p.detach()[None], A * torch.nan, B)
    left, right, finite = with_momentum(state, (A, B), bad, Update(0.1, momentum=0.9), 3)
    assert not finite and not left.any() and not right.any()
    for key in ("factors_a", "factors_b"):
        if ranks[1] == ranks[2]:
            assert torch.equal(before[key], state[key])
        else:  # there is no room for the oldest
            assert not state[key][..., : 2 * ranks[2]].any()
            assert torch.equal(before[key][..., :newest], state[key][..., 2 * ranks[2] :])


@pytest.mark.bad_input
def test_a_graph_of_another_rank_than_the_momentum_is_refused(generator, monkeypatch):
    p = weight((60, 60), generator)
    optimizer = FlowSGD([p], **DENSE, momentum=0.9, factor_window=3)
    for r in (1, 2, 2):
        optimizer.step(factors={p: factors(p, r, generator)})
    before = copy.deepcopy(optimizer.state[p])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"got 1 after \[2, 2\]. Take factor_window - 1 = 2"):
        optimizer.step(factors={p: factors(p, 1, generator)})
    assert torch.equal(before["factors_a"], optimizer.state[p]["factors_a"])
    address = optimizer.state[p]["factors_a"].data_ptr()
    optimizer.step(factors={p: factors(p, 2, generator)})
    assert optimizer.state[p]["factors_a"].data_ptr() == address


def test_the_rank_of_a_step_decides_how_it_is_taken(generator, monkeypatch):
    p, seen = weight((60, 60), generator), []
    monkeypatch.setattr(
        "skewflow.optim.executors.low_rank.is_worth_it",
        lambda rank, *rest: seen.append(rank) or True,
    )
    optimizer = FlowSGD([p], **DENSE, momentum=0.9, factor_window=3)
    for r in (1, 3, 1, 1, 1):
        optimizer.step(factors={p: factors(p, r, generator)})
    assert seen == [1, 3 + 2, 1 + 6 + 2, 1 + 2 + 6, 1 + 2 + 2]


def test_a_vanishing_momentum_with_nesterov_is_none(generator):
    p = weight((60, 60), generator, torch.float32)
    q, given = copy.deepcopy(p), factors(p, 2, generator)
    FlowSGD([p], **DENSE, momentum=1e-45, nesterov=True).step(factors={p: given})
    FlowSGD([q], **DENSE).step(factors={q: given})
    assert_close("p", q.detach(), p.detach(), torch.float32)


def gap_to_gradients(lr, steps):
    """Between momentum of factors, all remembered, and that of gradients."""
    g = torch.Generator().manual_seed(5)
    p = weight((60, 20), g)
    q = copy.deepcopy(p)
    options = {"lr": lr, "block_size": "dense", "momentum": 0.9}
    ours, theirs = FlowSGD([p], **options, factor_window=steps), FlowSGD([q], **options)
    for _ in range(steps):
        A, B = factors(p, 1, g)
        ours.step(factors={p: (A, B)})
        q.grad = A @ B.mT
        theirs.step()
    return (p - q).detach().norm().item()


def test_two_steps_are_those_of_the_momentum_of_gradients():
    assert gap_to_gradients(0.1, 2) < 1e-12


def test_a_window_as_long_as_the_run_is_the_momentum_of_gradients_but_for_the_second_order():
    # Gradients are projected anew at each point: a force that differs by lr^2, a way by lr^3.
    ratio = gap_to_gradients(0.2, 5) / gap_to_gradients(0.1, 5)
    assert 7 < ratio < 9


@pytest.mark.parametrize("d, k", [(64, 6), (12, 12)])
def test_momentum_of_factors_finds_the_leading_vectors_of_a_matrix(d, k, generator):
    values = torch.linspace(1, 0, d, dtype=torch.float64)
    Q = weight((d, d), generator).detach()
    C, weights = Q @ values.diag() @ Q.mT, torch.linspace(1, 0.2, k, dtype=torch.float64)
    p, identity = weight((d, k), generator), torch.eye(k, dtype=torch.float64)
    optimizer = FlowSGD([p], lr=0.5, block_size="dense", momentum=0.9, factor_window=40)
    for _ in range(400):
        half = C @ p.detach() * weights
        optimizer.step(factors={p: (-2 * half, identity)})
    gap = (values[:k] * weights).sum() - (p.detach() * half).sum()
    assert gap < 1e-8  # 0.04 and 0.5 with the normal part


@pytest.mark.parametrize("rate, stable", [(0.39, True), (0.42, False)])
def test_a_window_of_four_bears_a_rate_of_two_fifths(rate, stable):
    angle = torch.tensor(1e-3, dtype=torch.float64)
    c, s = angle.cos(), angle.sin()
    p = nn.Parameter(torch.stack([c, -s, s, c]).reshape(2, 2))
    optimizer = FlowSGD([p], lr=rate, block_size="dense", momentum=0.9)
    half = torch.eye(2, dtype=torch.float64) / 2
    for _ in range(400):  # of 1 - cos(angle), whose curvature is 1
        optimizer.step(factors={p: (-half, 2 * half)})
    assert (p.detach()[1, 0].abs() < 1e-4) == stable


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_gives_the_same_bits(dtype, generator):
    def run(resume):
        g = torch.Generator().manual_seed(0)
        p = weight((40, 12), g, torch.float32)
        p = nn.Parameter(p.detach().to(dtype))
        make = lambda p: FlowSGD([p], **DENSE, momentum=0.9, check_every=2)  # noqa: E731
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
def test_a_first_gradient_step_that_fails_leaves_no_momentum_of_gradients(generator):
    p = weight((12, 12), generator)
    q, given = copy.deepcopy(p), factors(p, 2, generator)
    optimizer = FlowSGD([p], **DENSE, momentum=0.9)
    p.grad = torch.full_like(p, torch.nan)
    with pytest.raises(NonFiniteGradientError):
        optimizer.step()
    p.grad = None
    fresh = FlowSGD([q], **DENSE, momentum=0.9)
    for _ in range(2):
        optimizer.step(factors={p: given})
        fresh.step(factors={q: given})
    assert torch.equal(p, q) and "momentum_buffer" not in optimizer.state[p]
    p.grad = torch.ones_like(p)
    with pytest.raises(FactorError, match="its momentum is that of factors"):
        optimizer.step()


@pytest.mark.bad_input
def test_factors_refused_beside_a_gradient_are_taken_without_it(generator):
    p = weight((12, 12), generator)
    given = factors(p, 2, generator)
    optimizer = FlowSGD([p], **DENSE, momentum=0.9)
    p.grad = torch.ones_like(p)
    with pytest.raises(FactorError, match="must have one source of its gradient"):
        optimizer.step(factors={p: given})
    assert not optimizer.state[p]["momentum_buffer"].any()
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
