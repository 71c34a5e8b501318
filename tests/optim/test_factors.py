"""Steps by factors: given, or kept by linear layers; momentum, state, and what is refused."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers import assert_close, randn
from skewflow.errors import FactorError, NonFiniteGradientError
from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import OrthogonalLinear, orthogonal_
from skewflow.optim import FlowAdam, FlowSGD, capture_factors
from skewflow.optim._factored import FactoredStep, is_worth_it
from skewflow.optim._guard import polish_

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


def linear(in_features, out_features, generator, bias=True, cls=OrthogonalLinear):
    layer = cls(in_features, out_features, bias=bias, dtype=torch.float64)
    orthogonal_(layer.weight, generator=generator)
    layer.orthogonal_names = ("weight",)
    return layer


def pair(model, **options):
    """A model that keeps factors and a copy that does not, with an optimiser each."""
    plain = copy.deepcopy(model)
    capture_factors(model)
    ours, theirs = ([m.weight for m in net.modules() if isinstance(m, nn.Linear)]
                    for net in (model, plain))  # fmt: skip
    return plain, FlowSGD(ours, **DENSE, **options), FlowSGD(theirs, **DENSE, **options)


def assert_same(model, plain):
    for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert_close(name, b.detach(), a.detach())


@pytest.mark.parametrize("cls", [OrthogonalLinear, nn.Linear])
@pytest.mark.parametrize("sizes", [(40, 40), (40, 60), (60, 40)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_captured_layers_take_the_step_of_their_gradients(sizes, bias, inplace, cls, generator):
    model = nn.Sequential(
        linear(*sizes, generator, bias, cls),
        nn.ReLU(inplace=inplace),
        linear(sizes[1], 40, generator, bias, cls),
    )
    plain, ours, theirs = pair(model)
    for _ in range(3):
        x = randn(2, 3, sizes[0], generator=generator)
        for net, optimizer in ((model, ours), (plain, theirs)):
            net(x).pow(3).sum().div(100).backward()
            assert (net[0].weight.grad is None) == (net is model)
            optimizer.step()
            optimizer.zero_grad()
        assert_same(model, plain)
        assert torch.equal(plain(x).isfinite(), torch.ones(2, 3, 40, dtype=torch.bool))
    assert all((orthogonality_error(as_matrices(m.weight.detach())) < 1e-13).all()
               for m in model if isinstance(m, nn.Linear))  # fmt: skip


def test_other_gradients_are_untouched(generator):
    model = nn.Sequential(linear(8, 8, generator), nn.Tanh(), linear(8, 8, generator))
    plain, _, _ = pair(model)
    x = randn(5, 8, generator=generator)
    for net in (model, plain):
        net(x).square().sum().backward()
    for ours, theirs in zip((m.bias for m in (model[0], model[2])),
                            (m.bias for m in (plain[0], plain[2])), strict=True):  # fmt: skip
        assert_close("bias", theirs.grad, ours.grad)


def test_micro_batches_and_repeated_uses_are_joined(generator):
    model = linear(40, 40, generator)
    plain, ours, theirs = pair(model)
    for net, optimizer in ((model, ours), (plain, theirs)):
        g = torch.Generator().manual_seed(3)
        for _ in range(3):
            x = randn(2, 40, generator=g)
            net(input=torch.tanh(net(x))).square().sum().backward()
        optimizer.step()
    assert_same(model, plain)


def test_a_checkpointed_layer_counts_once(generator):
    model = nn.Sequential(linear(40, 40, generator), nn.Tanh())
    plain, ours, theirs = pair(model)
    x = randn(3, 40, generator=generator).requires_grad_()
    checkpoint(model, x, use_reentrant=False).pow(3).sum().backward()
    plain(x).pow(3).sum().backward()
    ours.step()
    theirs.step()
    assert_same(model, plain)


def test_a_pass_that_asks_for_other_gradients_does_not_count(generator):
    model = linear(40, 40, generator)
    plain, ours, theirs = pair(model)
    for net, optimizer in ((model, ours), (plain, theirs)):
        x = randn(3, 40, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = net(x)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        y.square().sum().backward()
        y = net(x)
        torch.autograd.grad(y.sum(), x)
        optimizer.step()
    assert_same(model, plain)


def test_evaluation_and_frozen_weights_keep_nothing(generator):
    model = linear(40, 40, generator)
    before = model.weight.detach().clone()
    capture_factors(model)
    optimizer = FlowSGD([model.weight], **DENSE)
    x = randn(3, 40, generator=generator)
    with torch.no_grad():
        model(x)
    model.weight.requires_grad_(False)
    model(x).sum().backward()
    assert not model.weight.requires_grad
    optimizer.step()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("sizes", [(40, 40), (40, 60), (60, 40)], ids=str)
def test_the_products_of_a_layer_are_used(sizes, generator, monkeypatch):
    model, seen = linear(*sizes, generator), []
    capture_factors(model)
    step = FactoredStep.__call__
    monkeypatch.setattr(
        FactoredStep, "__call__", lambda self, *args: seen.append(args) or step(self, *args)
    )
    x = randn(3, sizes[0], generator=generator).requires_grad_()
    model(x).square().sum().backward()
    before = model.weight.detach().clone()
    FlowSGD([model.weight], **DENSE).step()
    ((_, A, B, _, V, AX),) = seen
    X = before if sizes[1] >= sizes[0] else before.mT
    assert_close("V", (X @ B[0]), V[0])
    assert (AX is None) == (sizes[1] < sizes[0])  # of a wide weight it would need the bias
    if AX is not None:
        assert_close("AX", A[0].mT @ X, AX[0])


def test_products_of_low_precision_are_not_used(generator):
    model = nn.Sequential(linear(40, 40, generator), nn.Tanh(), linear(40, 40, generator)).float()
    for layer in (model[0], model[2]):
        polish_(layer.weight.data[None])
    capture_factors(model)
    optimizer = FlowSGD([model[0].weight, model[2].weight], **DENSE, guard_every=0)
    for _ in range(20):
        x = randn(3, 40, generator=generator, dtype=torch.float32).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        y.float().square().sum().backward()
        optimizer.step()
    for layer in (model[0], model[2]):
        assert orthogonality_error(layer.weight.detach()) < 1e-5


def test_zero_grad_drops_what_was_kept(generator):
    model = linear(40, 40, generator)
    before = model.weight.detach().clone()
    capture_factors(model)
    optimizer = FlowSGD([model.weight], **DENSE)
    model(randn(3, 40, generator=generator)).square().sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(model.weight, before)


def test_a_removed_capture_leaves_plain_layers(generator):
    model = linear(40, 40, generator)
    capture_factors(model).remove()
    model(randn(3, 40, generator=generator)).square().sum().backward()
    assert model.weight.grad is not None


def test_a_failing_forward_pass_leaves_the_weight_trainable(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        model(randn(3, 41, generator=generator))
    assert model.weight.requires_grad
    model(randn(3, 40, generator=generator)).sum().backward()
    assert model.weight.grad is None


def test_copies_and_pickles_of_a_captured_model_keep_factors_of_their_own(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        optimizer, before = FlowSGD([twin.weight], **DENSE), twin.weight.detach().clone()
        model(randn(3, 40, generator=generator)).square().sum().backward()
        optimizer.step()
        assert torch.equal(twin.weight, before)
        twin(randn(3, 40, generator=generator)).pow(3).sum().backward()
        assert twin.weight.grad is None
        optimizer.step()
        assert not torch.equal(twin.weight, before)


def test_half_precision_layers_have_a_master(generator):
    model = linear(64, 64, generator, cls=nn.Linear).to(torch.bfloat16)
    capture_factors(model)
    optimizer = FlowSGD([model.weight], lr=0.01, block_size="dense")
    for _ in range(3):
        model(randn(4, 64, generator=generator, dtype=torch.bfloat16)).square().sum().backward()
        optimizer.step()
    master = optimizer.state[model.weight]["master"]
    assert master.dtype == torch.float32
    assert orthogonality_error(master) < 1e-5
    assert torch.equal(master.to(torch.bfloat16), model.weight)


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
    ({}, lambda A, B: (A.long(), B), "must be real floating-point"),
]


@pytest.mark.bad_input
@pytest.mark.parametrize("options, change, message", BAD)
def test_factors_that_do_not_fit_are_refused_and_nothing_changes(
    options, change, message, generator
):
    p = weight((12, 12), generator)
    before, (A, B) = p.detach().clone(), factors(p, 2, generator)
    A, B = change(A, B) if change else (A, B)
    with pytest.raises(FactorError, match=message):
        FlowSGD([p], **{**DENSE, **options}).step(factors={p: (A, B)})
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
    with pytest.raises(FactorError, match="must be for parameters of this optimiser"):
        optimizer.step(factors={q: given})
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
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e80])
def test_factors_that_are_not_finite_raise_or_are_skipped(bad, generator):
    p, q = weight((12, 12), generator), weight((12, 12), generator)
    given = {p: factors(p, 2, generator), q: factors(q, 2, generator)}
    given[q][0][0, 0] = given[q][1][0, 0] = bad
    before = p.detach().clone(), q.detach().clone()
    with pytest.raises(NonFiniteGradientError, match="factors of second must be finite"):
        FlowSGD([("first", p), ("second", q)], **DENSE, momentum=0.9).step(factors=given)
    assert torch.equal(p, before[0]) and torch.equal(q, before[1])
    optimizer = FlowSGD([p, q], **DENSE, nonfinite="skip")
    optimizer.step(factors=given)
    assert not torch.equal(p, before[0]) and torch.equal(q, before[1])
    assert [int(optimizer.state[r]["skipped"]) for r in (p, q)] == [0, 1]


@pytest.mark.bad_input
def test_stale_factors_are_refused(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    optimizer = FlowSGD([("W", model.weight)], **DENSE)
    model(randn(3, 40, generator=generator)).square().sum().backward()
    with torch.no_grad():
        model.weight.copy_(model.weight.mT.clone())
    before = model.weight.detach().clone()
    with pytest.raises(FactorError, match="W must not change between the forward pass"):
        optimizer.step()
    assert torch.equal(model.weight, before)


@pytest.mark.bad_input
@pytest.mark.parametrize("sizes", [(40, 40), (40, 60), (60, 40)], ids=str)
def test_a_weight_that_was_written_behind_autograds_back_is_refused(sizes, generator):
    model = linear(*sizes, generator)
    capture_factors(model)
    optimizer = FlowSGD([("W", model.weight)], **DENSE)
    model(randn(3, sizes[0], generator=generator).requires_grad_()).square().sum().backward()
    model.weight.data.neg_()
    before = model.weight.detach().clone()
    with pytest.raises(FactorError, match="W must not change between the forward pass"):
        optimizer.step()
    assert torch.equal(model.weight, before)


@pytest.mark.bad_input
def test_inputs_that_were_overwritten_before_the_step_are_refused(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    optimizer = FlowSGD([("W", model.weight)], **DENSE)
    x = randn(3, 40, generator=generator)
    model(x).square().sum().backward()
    x.copy_(randn(3, 40, generator=generator))  # the next batch
    before = model.weight.detach().clone()
    with pytest.raises(FactorError, match="inputs of the layer of W, .* must not change"):
        optimizer.step()
    assert torch.equal(model.weight, before)


def test_what_the_layer_passes_back_may_be_overwritten(generator):
    model = linear(40, 40, generator, bias=False)
    plain, ours, theirs = pair(model)
    for net, optimizer in ((model, ours), (plain, theirs)):
        x = randn(3, 40, generator=torch.Generator().manual_seed(1)).requires_grad_()
        hidden = x * 1.0
        hidden.register_hook(lambda g: g.mul_(5))
        y = net(hidden)
        y.square().sum().backward()
        with torch.no_grad():
            y.zero_()
        optimizer.step()
    assert_same(model, plain)


@pytest.mark.bad_input
def test_a_weight_used_outside_of_its_layer_is_refused(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    optimizer = FlowSGD([("W", model.weight)], **DENSE)
    (model(randn(3, 40, generator=generator)).square().sum() + model.weight.sum()).backward()
    with pytest.raises(FactorError, match="W must have one source .* factors and a gradient"):
        optimizer.step()


@pytest.mark.bad_input
def test_a_scaler_is_refused_when_there_are_factors(generator):
    model = nn.Sequential(linear(40, 40, generator), linear(40, 40, generator))
    capture_factors(model[0])
    optimizer = FlowSGD([("V", model[0].weight), ("W", model[1].weight)], **DENSE)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(randn(3, 40, generator=generator)).square().sum()).backward()
    before = [layer.weight.detach().clone() for layer in model]
    with pytest.raises(FactorError, match="divides gradients only: V have factors"):
        scaler.step(optimizer)
    optimizer.zero_grad()
    model[1](randn(3, 40, generator=generator)).sum().mul(scaler.get_scale()).backward()
    scaler.step(optimizer)
    moved = [not torch.equal(l.weight, b) for l, b in zip(model, before, strict=True)]
    assert moved == [False, True]


@pytest.mark.bad_input
def test_models_without_a_layer_to_capture_are_refused(generator):
    class Own(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(ValueError, match="none has"):
        capture_factors(linear(5, 5, generator, cls=Own))


@pytest.mark.bad_input
def test_factors_of_several_processes_are_refused(generator, monkeypatch):
    model = linear(40, 40, generator)
    capture_factors(model)
    optimizer = FlowSGD([("W", model.weight)], **DENSE)
    model(randn(3, 40, generator=generator)).square().sum().backward()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(FactorError, match="not exchanged between processes: there are 2"):
        optimizer.step()
