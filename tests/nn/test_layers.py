"""What every layer has to do: be saved, copied, moved, cast, compiled, and trained."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from helpers import assert_close
from layer_cases import CASES, MARKED, outputs
from skewflow.geometry import check_stiefel, orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import orthogonal_parameters
from skewflow.optim import FlowSGD, split_parameters

EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
EVERY_MARKED = pytest.mark.parametrize("case", MARKED.values(), ids=MARKED)


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@EVERY_MARKED
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_marked_weight_is_orthogonal_from_the_start_and_again_after_a_reset(case, dtype):
    layer = case.build(dtype)
    for _ in range(2):
        ((name, weight),) = orthogonal_parameters(layer)
        assert name == case.weight and check_stiefel(as_matrices(weight.detach()))
        before = weight.detach().clone()
        layer.reset_parameters()
        assert not torch.equal(weight, before)


@EVERY
def test_a_state_dict_carries_everything(case):
    first, second, x = case.build(seed=0), case.build(seed=1), case.input()
    assert not same(outputs(first, x), outputs(second, x))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert same(outputs(first, x), outputs(second, x))


@EVERY_MARKED
@pytest.mark.parametrize(
    "change",
    [
        copy.deepcopy,
        lambda layer: pickle.loads(pickle.dumps(layer)),
        lambda layer: layer.to("meta"),
        lambda layer: layer.half(),
        lambda layer: nn.Sequential(layer),
        lambda layer: torch.compile(layer, backend="eager"),
    ],
    ids=["deepcopy", "pickle", "move", "half", "nested", "compile"],
)
def test_marks_survive(case, change):
    layer = change(case.build())
    ((name, weight),) = orthogonal_parameters(layer)
    assert name.endswith(case.weight)
    assert any(weight is p for p in layer.parameters())


@EVERY
def test_a_compiled_layer_is_one_graph_and_gives_the_same(case):
    layer, x = case.build(), case.input()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert same(outputs(compiled, x), outputs(layer, x))


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_gives_what_float32_gives_to_its_rounding(case, dtype):
    layer = case.build(dtype)
    x = case.input(dtype)
    exact = outputs(copy.deepcopy(layer).float(), x.float())
    for y, reference in zip(outputs(layer, x), exact, strict=True):
        assert y.dtype == dtype
        # A few roundings of sums of at most 27 terms.
        tolerance = 16 * torch.finfo(dtype).eps * max(1.0, reference.abs().max().item())
        assert (y.float() - reference).abs().max() < tolerance


@EVERY
def test_autocast_runs(case):
    layer, x = case.build(), case.input()
    exact = outputs(layer, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = outputs(layer, x)
    for y, reference in zip(cast, exact, strict=True):
        assert (y.float() - reference).abs().max() < 0.2 * max(1.0, reference.abs().max().item())


@EVERY
def test_everything_moves_with_the_layer(case):
    moved = case.build().to("meta")
    for y, here in zip(
        outputs(moved, case.input().to("meta")), outputs(case.build(), case.input()), strict=True
    ):
        assert y.device.type == "meta" and y.shape == here.shape


@EVERY
@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
def test_a_layer_built_without_memory_is_filled_by_a_state(case, assign):
    with torch.device("meta"):
        layer = case.build()
    if not assign:
        layer.to_empty(device="cpu")
    full, x = case.build(), case.input()
    layer.load_state_dict(full.state_dict(), assign=assign)
    assert same(outputs(layer, x), outputs(full, x))


@EVERY
def test_a_layer_built_without_memory_is_filled_by_a_reset(case):
    with torch.device("meta"):
        layer = case.build()
    layer.to_empty(device="cpu")
    for module in layer.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.data.fill_(9)  # what happens to lie there
    full, x = case.build(), case.input()
    for model in (layer, full):
        torch.manual_seed(0)
        for module in list(model.modules())[::-1]:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    assert same(outputs(layer, x), outputs(full, x))


@EVERY
def test_a_layer_is_built_and_differentiated_among_fake_tensors(case):
    shapes = [y.shape for y in outputs(case.build(), case.input())]
    with FakeTensorMode():
        layer = case.build()
        found = outputs(layer, case.input())
        sum(y.sum() for y in found).backward()
    assert [y.shape for y in found] == shapes
    assert all(p.grad.shape == p.shape for p in layer.parameters())


@EVERY
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own
def test_transforms_of_torch_give_the_gradients_of_autograd(case):
    layer, x = case.build(torch.float64), case.input(torch.float64)
    params = dict(layer.named_parameters())
    many = torch.stack([x, 2 * x])

    def loss(params, x):
        return sum(y.square().sum() for y in outputs(partial(functional_call, layer, params), (x,)))

    fixed = {name: p.detach() for name, p in params.items()}
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(fixed, many)
    for i in range(2):
        expected = torch.autograd.grad(loss(params, many[i]), list(params.values()))
        for (name, values), gradient in zip(found.items(), expected, strict=True):
            assert_close(name, gradient, values[i], factor=100)  # the adjoint rounds anew


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_copies_are_layers_of_their_own(case, dtype):
    layer, x = case.build(dtype), case.input(dtype)
    before = outputs(layer, x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert same(outputs(other, x), before)
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
    assert same(outputs(layer, x), before)


@EVERY_MARKED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_lowers_the_loss_and_keeps_the_weight_orthogonal(case, dtype):
    layer, teacher, x = case.build(dtype), case.build(seed=1), case.input()
    targets = [y.detach() for y in outputs(teacher, x)]
    orthogonal, rest = split_parameters(layer)
    flow = FlowSGD(orthogonal, lr=0.02, momentum=0.9, block_size=2)
    optimizers = [flow, torch.optim.AdamW(rest, lr=1e-2, weight_decay=0.0)]
    losses = []
    for _ in range(100):
        for optimizer in optimizers:
            optimizer.zero_grad()
        pairs = zip(outputs(layer, x.to(dtype)), targets, strict=True)
        loss = sum((y.float() - target).square().mean() for y, target in pairs)
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    ((_, weight),) = orthogonal
    # A half weight is the rounding of its float32 master: that one is what is kept orthogonal.
    stepped = flow.state[weight].get("master", weight).detach()
    assert orthogonality_error(as_matrices(stepped)).max() < 1e-5
