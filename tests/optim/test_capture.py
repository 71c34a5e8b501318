"""Factors that linear layers keep: the step of their gradients, whatever becomes of them."""

import copy
import io
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers import assert_close, randn
from skewflow.errors import FactorError
from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.kernels.polish.reference import polish_
from skewflow.kernels.rotate_factored.dispatch import FactoredStep
from skewflow.nn import OrthogonalLinear, orthogonal_
from skewflow.optim import FactoredGradient, FlowSGD, capture_factors

DENSE = {"lr": 0.1, "block_size": "dense"}


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
            assert isinstance(net[0].weight.grad, FactoredGradient) == (net is model)
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
        net(x).pow(3).sum().backward()
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
            net(input=torch.tanh(net(x))).pow(3).sum().backward()
        optimizer.step()
    assert_same(model, plain)


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("sizes", [(40, 40), (40, 60), (60, 40)], ids=str)
def test_an_empty_batch_has_a_gradient_of_zeros(sizes, passed, generator):
    model = linear(*sizes, generator)
    plain, ours, theirs = pair(model, momentum=0.9)
    for net, optimizer in ((model, ours), (plain, theirs)):
        for batch in (0, 1, 0):  # the last step goes on along the momentum
            x = randn(batch, sizes[0], generator=torch.Generator().manual_seed(3))
            net(x.requires_grad_(passed)).pow(3).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_layer_counts_once_and_its_other_uses_do_too(reentrant, generator):
    model = nn.Sequential(linear(40, 40, generator), nn.Tanh())
    plain, ours, theirs = pair(model)
    x = randn(2, 40, generator=generator).requires_grad_()
    model(checkpoint(model, model(x), use_reentrant=reentrant)).pow(3).sum().backward()
    plain(plain(plain(x))).pow(3).sum().backward()
    ours.step()
    theirs.step()
    assert_same(model, plain)


def test_other_hooks_may_change_inputs_and_outputs(generator):
    model = nn.Sequential(linear(60, 40, generator), linear(40, 40, generator))
    model[0].register_forward_hook(lambda module, args, y: 2 * y)
    plain, ours, theirs = pair(model)
    x = randn(3, 60, generator=generator)
    for net, optimizer in ((model, ours), (plain, theirs)):
        net[0].register_forward_hook(lambda module, args, y: y + args[0].mean())
        net[1].register_forward_pre_hook(lambda module, args: (3 * args[0],))
        net(x).pow(3).mean().backward()
        optimizer.step()
    assert_same(model, plain)


def test_two_threads_may_use_a_layer_at_once(generator):
    model = linear(40, 40, generator)
    plain, ours, theirs = pair(model)
    x, y = randn(2, 2, 40, generator=generator)

    def meanwhile(module, args):
        handle.remove()
        other = threading.Thread(target=lambda: module(y).pow(3).sum().backward())
        other.start()
        other.join()

    for net, optimizer in ((model, ours), (plain, theirs)):
        handle = net.register_forward_pre_hook(meanwhile)
        net(x).pow(3).sum().backward()
        optimizer.step()
    assert_same(model, plain)


# torch's tracer raises it by itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_the_layers_of_a_compiled_model_stay_outside_of_its_graph(generator):
    model = nn.Sequential(linear(40, 40, generator), nn.Tanh(), linear(40, 40, generator))
    plain, ours, theirs = pair(model)
    x = randn(3, 40, generator=generator)
    for net, optimizer in ((torch.compile(model, backend="eager"), ours), (plain, theirs)):
        net(x).pow(3).mean().backward()
        optimizer.step()
    assert isinstance(model[0].weight.grad, FactoredGradient)
    assert_same(model, plain)


def test_weights_that_are_put_into_a_model_for_a_call_get_their_gradients(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    w, x = model.weight.detach().clone().requires_grad_(), randn(3, 40, generator=generator)
    call = torch.func.functional_call
    call(model, {"weight": w}, (x,)).pow(3).sum().backward()
    loss = lambda w: call(model, {"weight": w}, (x,)).pow(3).sum()  # noqa: E731
    assert_close("grad", w.grad, torch.func.grad(loss)(w.detach()))
    assert_close("rows", model(x).detach(), torch.vmap(model)(x).detach())


def test_a_pass_that_asks_for_other_gradients_does_not_count(generator):
    model = linear(40, 40, generator)
    plain, ours, theirs = pair(model)
    for net, optimizer in ((model, ours), (plain, theirs)):
        x = randn(3, 40, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = net(x)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        y.pow(3).sum().backward()
        y = net(x)
        torch.autograd.grad(y.sum(), x)
        net(x).pow(2).sum().backward(inputs=[x])
        net(x).pow(5).sum().div(100).backward(inputs=[net.weight])
        optimizer.step()
    assert_same(model, plain)


@pytest.mark.bad_input
def test_passes_that_need_the_gradient_itself_are_refused(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    loss = model(randn(3, 40, generator=generator).requires_grad_()).pow(3).sum()
    with pytest.raises(RuntimeError, match=r"forms no gradient .*Call `backward\(\)` instead"):
        torch.autograd.grad(loss, model.weight, retain_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only: .* Remove the capture"):
        loss.backward(create_graph=True)


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
    model(x).pow(3).sum().backward()
    before = model.weight.detach().clone()
    FlowSGD([model.weight], **DENSE).step()
    ((_, A, B, _, V, AX, _),) = seen
    X = before if sizes[1] >= sizes[0] else before.mT
    assert_close("V", (X @ B[0]), V[0])
    assert (AX is None) == (sizes[1] < sizes[0])  # of a wide weight the output is not kept
    if AX is not None:
        assert_close("AX", A[0].mT @ X, AX[0])


@pytest.mark.parametrize("bias, size", [(1.0, 1e-4), (1e4, 1.0)])
def test_a_large_bias_costs_no_digits(bias, size, generator):
    model = OrthogonalLinear(40, 40)
    orthogonal_(model.weight, generator=generator)
    nn.init.constant_(model.bias, bias)
    plain, ours, theirs = pair(model)
    x = size * randn(3, 40, generator=generator, dtype=torch.float32)
    for net, optimizer in ((model, ours), (plain, theirs)):
        net(x).pow(3).sum().div(3 * size * bias**2).backward()
        optimizer.step()
    assert_close("weight", plain.weight.detach(), model.weight.detach(), torch.float32)


def test_products_of_low_precision_are_not_used(generator):
    model = nn.Sequential(linear(40, 40, generator), nn.Tanh(), linear(40, 40, generator)).float()
    for layer in (model[0], model[2]):
        polish_(layer.weight.data[None])
    capture_factors(model)
    optimizer = FlowSGD([model[0].weight, model[2].weight], **DENSE, check_every=0)
    for _ in range(20):
        x = randn(3, 40, generator=generator, dtype=torch.float32).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        y.float().pow(3).sum().backward()
        optimizer.step()
    for layer in (model[0], model[2]):
        assert orthogonality_error(layer.weight.detach()) < 1e-5


@pytest.mark.parametrize("way", ["optimizer", "model", "to zeros"])
def test_zero_grad_drops_what_was_kept(way, generator):
    model = linear(40, 40, generator)
    before = model.weight.detach().clone()
    capture_factors(model)
    optimizer = FlowSGD([model.weight], **DENSE)
    model(randn(3, 40, generator=generator)).pow(3).sum().backward()
    if way == "model":
        model.zero_grad()
    else:
        optimizer.zero_grad(set_to_none=way == "optimizer")
    optimizer.step()
    assert torch.allclose(model.weight, before, atol=1e-15)


def test_a_gradient_stays_until_it_is_dropped_as_any_gradient_does(generator):
    model = linear(40, 40, generator)
    plain, ours, theirs = pair(model)
    for net, optimizer in ((model, ours), (plain, theirs)):
        data = torch.Generator().manual_seed(3)
        for passes in (1, 0, 1):  # the second step goes on along the first gradient
            for _ in range(passes):
                net(randn(2, 40, generator=data)).pow(3).sum().div(100).backward()
            optimizer.step()
    assert_same(model, plain)


@pytest.mark.parametrize("norm_type", [2.0, float("inf"), 1.0])
def test_a_clipped_gradient_is_the_gradient_of_the_step(norm_type, generator):
    model = nn.Sequential(linear(40, 40, generator), nn.Tanh(), linear(40, 60, generator))
    plain, ours, theirs = pair(model)
    x, norms = randn(3, 40, generator=generator), []
    for net, optimizer in ((model, ours), (plain, theirs)):
        net(x).pow(3).sum().backward()
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.1, norm_type))
        optimizer.step()
    assert_close("norm", norms[1], norms[0])
    assert_same(model, plain)


def test_a_grad_scaler_takes_its_scale_out_of_factors_too(generator):
    model = nn.Sequential(linear(40, 40, generator), linear(40, 40, generator))
    plain = copy.deepcopy(model)
    capture_factors(model[0])
    x = randn(3, 40, generator=generator)
    for net in (model, plain):
        optimizer = FlowSGD([layer.weight for layer in net], **DENSE)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for value in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(net(x).mul(value).pow(3).sum().div(100)).backward()
            before = [layer.weight.detach().clone() for layer in net]
            scaler.step(optimizer)
            scaler.update()
            moved = [not torch.equal(l.weight, b) for l, b in zip(net, before, strict=True)]
            assert moved == [value == 1.0] * 2
    assert_same(model, plain)


@pytest.mark.bad_input
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_another_optimiser_is_refused_with_the_reason(make, generator):
    model = linear(40, 40, generator)
    before = model.weight.detach().clone()
    capture = capture_factors(model)
    optimizer = make([model.weight], lr=0.1)
    model(randn(3, 40, generator=generator)).pow(3).sum().backward()
    with pytest.raises(FactorError, match=r"kept as factors.*only by FlowSGD.*`remove\(\)`"):
        optimizer.step()
    assert torch.equal(model.weight, before)
    capture.remove()
    optimizer.step()
    assert not torch.equal(model.weight, before)


@pytest.mark.bad_input
def test_what_needs_the_entries_of_the_gradient_is_refused(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    model(randn(3, 40, generator=generator)).pow(3).sum().backward()
    with pytest.raises(FactorError, match="aten.clamp_.default needs its entries"):
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
    with pytest.raises(FactorError, match=r"multiplied by one number: got a tensor of shape \(40,"):
        model.weight.grad.mul_(torch.ones(40, 40))


def test_a_removed_capture_leaves_plain_layers_and_what_was_kept_is_formed(generator):
    model = linear(40, 40, generator)
    plain, capture = copy.deepcopy(model), capture_factors(model)
    x = randn(3, 40, generator=generator)
    model(x).pow(3).sum().backward()
    capture.remove()
    model(x).pow(3).sum().backward()
    for _ in range(2):
        plain(x).pow(3).sum().backward()
    assert type(model.weight.grad) is torch.Tensor
    assert_close("both passes", plain.weight.grad, model.weight.grad)


def test_a_copy_is_captured_as_long_as_the_model_it_was_copied_from(generator):
    model = linear(40, 40, generator)
    capture = capture_factors(model)
    twin = copy.deepcopy(model)
    x = randn(3, 40, generator=generator)
    twin(x).pow(3).sum().backward()
    assert isinstance(twin.weight.grad, FactoredGradient) and model.weight.grad is None
    capture.remove()
    twin.zero_grad()
    twin(x).pow(3).sum().backward()
    before = twin.weight.detach().clone()
    FlowSGD([twin.weight], lr=0.1, block_size=8).step()
    assert type(twin.weight.grad) is torch.Tensor and not torch.equal(twin.weight, before)


def test_a_failing_forward_pass_leaves_the_weight_trainable(generator):
    def interrupt(module, args):
        handle.remove()
        raise KeyboardInterrupt

    model = linear(40, 40, generator)
    capture_factors(model)
    handle = model.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(randn(3, 40, generator=generator))
    assert model.weight.requires_grad
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        model(randn(3, 41, generator=generator))
    assert model.weight.requires_grad
    model(randn(3, 40, generator=generator)).sum().backward()
    assert isinstance(model.weight.grad, FactoredGradient)


def test_copies_and_pickles_of_a_captured_model_keep_factors_of_their_own(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        optimizer, before = FlowSGD([twin.weight], **DENSE), twin.weight.detach().clone()
        model(randn(3, 40, generator=generator)).pow(3).sum().backward()
        optimizer.step()
        assert torch.equal(twin.weight, before)
        twin(randn(3, 40, generator=generator)).pow(3).sum().backward()
        assert isinstance(twin.weight.grad, FactoredGradient)
        optimizer.step()
        assert not torch.equal(twin.weight, before)


def test_half_precision_layers_have_a_master(generator):
    model = linear(64, 64, generator, cls=nn.Linear).to(torch.bfloat16)
    capture_factors(model)
    optimizer = FlowSGD([model.weight], lr=0.01, block_size="dense")
    for _ in range(3):
        model(randn(4, 64, generator=generator, dtype=torch.bfloat16)).pow(3).sum().backward()
        optimizer.step()
    master = optimizer.state[model.weight]["master"]
    assert master.dtype == torch.float32
    assert orthogonality_error(master) < 1e-5
    assert torch.equal(master.to(torch.bfloat16), model.weight)


@pytest.mark.parametrize("sizes", [(40, 40), (40, 60), (60, 40)], ids=str)
def test_a_gradient_of_an_older_weight_is_a_gradient_still(sizes, generator):
    model = linear(*sizes, generator)
    plain, ours, theirs = pair(model)
    x = randn(3, sizes[0], generator=generator).requires_grad_()
    for net, optimizer in ((model, ours), (plain, theirs)):
        net(x).pow(3).sum().backward()
        with torch.no_grad():
            net.weight.neg_()
        optimizer.step()
    assert_same(model, plain)


@pytest.mark.bad_input
@pytest.mark.parametrize("sizes", [(40, 40), (40, 60), (60, 40)], ids=str)
def test_a_weight_that_was_written_behind_autograds_back_is_refused(sizes, generator):
    model = linear(*sizes, generator)
    capture_factors(model)
    optimizer = FlowSGD([("W", model.weight)], **DENSE)
    model(randn(3, sizes[0], generator=generator).requires_grad_()).pow(3).sum().backward()
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
    model(x).pow(3).sum().backward()
    x.copy_(randn(3, 40, generator=generator))  # the next batch
    before = model.weight.detach().clone()
    with pytest.raises(FactorError, match="inputs of a captured layer, .* must not change"):
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
        y.pow(3).sum().backward()
        with torch.no_grad():
            y.zero_()
        optimizer.step()
    assert_same(model, plain)


@pytest.mark.bad_input
def test_a_weight_used_outside_of_its_layer_is_refused(generator):
    model = linear(40, 40, generator)
    capture_factors(model)
    x = randn(3, 40, generator=generator)
    with pytest.raises(FactorError, match="one source of its gradient|use it only in its layer"):
        (model(x).pow(3).sum() + model.weight.sum()).backward()
    model.zero_grad()
    model.weight.sum().backward()
    with pytest.raises(FactorError, match="must have one source of its gradient"):
        model(x).pow(3).sum().backward()


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
    model(randn(3, 40, generator=generator)).pow(3).sum().backward()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(FactorError, match="not exchanged between processes: there are 2"):
        optimizer.step()
