"""FlowSGD copied, pickled, saved and loaded: the same bits, or an error before any change."""

import copy
import pickle

import pytest
import torch
from torch import nn

from helpers import assert_close
from nets import Net, both, train
from skewflow.errors import NotOnManifoldError, ShapeError
from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD
from skewflow.samplers import HRegular

COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize(
    "options",
    [{}, {"block_size": 3, "check_every": 2}, {"block_size": "dense"}, {"sampler": HRegular(2)}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_copy_of_model_and_optimiser_goes_on_with_the_same_bits(make, options, dtype):
    model = Net(dtype=dtype)
    optimizers = both(model, **options)
    train(model, optimizers, 3)
    model2, optimizers2 = make((model, optimizers))
    saved = copy.deepcopy(model2.state_dict())
    train(model, optimizers, 3, seed=8)
    for name, value in model2.state_dict().items():
        assert torch.equal(value, saved[name])  # the copy has parameters of its own
    train(model2, optimizers2, 3, seed=8)
    for p, q in zip(model.parameters(), model2.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("way", ["state_dict", "deepcopy"])
def test_a_half_weight_written_before_it_is_saved_keeps_what_was_written(way, generator):
    model = Net(seed=1, dtype=torch.bfloat16)
    flow, adam = both(model, momentum=0.0, lr=0.0)
    train(model, (flow, adam), 2)
    orthogonal_(model.turn.weight, generator=generator)
    written = model.turn.weight.detach().clone()
    if way == "deepcopy":
        model, flow = copy.deepcopy((model, flow))
    else:
        saved, flow = flow.state_dict(), both(model)[0]
        flow.load_state_dict(saved)
    train(model, (flow,), 1)
    assert_close("written", written, model.turn.weight, torch.bfloat16)


def weights(shapes, generator):
    return [
        nn.Parameter(orthogonal_(torch.empty(s, dtype=torch.float64), generator=generator))
        for s in shapes
    ]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "groups, error, message",
    [
        (
            [[(4, 6), (5, 5)]],
            ShapeError,
            r"momentum_buffer` of parameter 0 .* is \(6, 4\), .*order",
        ),
        ([[(6, 4)], [(5, 5)]], ValueError, "different number of parameter groups"),
        ([[(6, 4)]], ValueError, "doesn't match the size of optimizer's group"),
    ],
)
def test_a_state_of_other_weights_is_refused_and_changes_nothing(groups, error, message, generator):
    source = FlowSGD(weights([(6, 4), (5, 5)], generator), lr=0.1, momentum=0.9, block_size=2)
    for p in source.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    source.step()
    target = FlowSGD([{"params": weights(s, generator)} for s in groups], lr=0.7, momentum=0.5)
    before = target.state_dict()
    with pytest.raises(error, match=message):
        target.load_state_dict(source.state_dict())
    assert target.state_dict() == before


@pytest.mark.bad_input
def test_the_state_of_another_optimiser_is_refused_and_changes_nothing(generator):
    [p] = weights([(6, 4)], generator)
    optimizer = FlowSGD([p], lr=0.7, momentum=0.5)
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match="that of the same optimiser: group 0.*no `step`"):
        optimizer.load_state_dict(torch.optim.SGD([p], lr=0.1, momentum=0.9).state_dict())
    assert optimizer.state_dict() == before


@pytest.mark.bad_input
def test_errors_call_named_parameters_by_their_names():
    with pytest.raises(ShapeError, match=r"head\.bias must have at least two dimensions"):
        FlowSGD(list(Net().named_parameters())[::2], lr=0.1)
    with pytest.raises(NotOnManifoldError, match=r"head\.weight of shape \(3, 8\)"):
        FlowSGD(Net().named_parameters(), lr=0.1)


def test_a_state_can_be_loaded_again_and_again(generator):
    p = nn.Parameter(orthogonal_(torch.empty(6, 6), generator=generator))
    optimizer = FlowSGD([p], lr=0.1, momentum=0.9, block_size=2)
    p.grad = torch.ones_like(p)
    optimizer.step()
    state = optimizer.state_dict()
    for _ in range(3):
        optimizer.load_state_dict(state)
    assert optimizer.state_dict()["param_groups"][0]["step"] == 1


def test_a_hook_may_rewrite_the_state_that_is_loaded(generator):
    [p] = weights([(6, 6)], generator)
    optimizer = FlowSGD([p], lr=0.1, momentum=0.9, block_size=2)
    p.grad = torch.ones_like(p).triu()
    optimizer.step()
    saved, seen = {"wrapped": optimizer.state_dict()}, []

    def unwrap(_, state):
        inner = copy.deepcopy(state["wrapped"])
        inner["state"][0]["momentum_buffer"].zero_()
        inner["param_groups"][0]["lr"] = 0.5
        return inner

    def look(loaded):
        seen.append(bool(loaded.state[p]["momentum_buffer"].any()))

    optimizer.register_load_state_dict_pre_hook(unwrap)
    optimizer.register_load_state_dict_post_hook(look)
    optimizer.load_state_dict(saved)
    assert seen == [False]  # the post hook sees the whole state
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.state_dict()["param_groups"][0]["step"] == 1


@pytest.mark.bad_input
@pytest.mark.parametrize("key", ["state", "param_groups"])
def test_a_state_without_its_entries_is_refused(key, generator):
    optimizer = FlowSGD(weights([(6, 6)], generator), lr=0.1)
    state = optimizer.state_dict()
    del state[key]
    with pytest.raises(ValueError, match=f"'state' and 'param_groups': '{key}' is missing"):
        optimizer.load_state_dict(state)


def test_the_sampler_of_an_older_state_keeps_its_meaning(generator):
    [p] = weights([(6, 6)], generator)
    optimizer = FlowSGD([p], lr=0.1, block_size=2)
    state = optimizer.state_dict()
    for group in state["param_groups"]:  # as states were written before they had a version
        del group["state_version"], group["weight_decay"]
        group["sampler"] = "uniform"
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["sampler"] == "sweep"
    optimizer.param_groups[0]["sampler"] = "uniform"
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["sampler"] == "uniform"
