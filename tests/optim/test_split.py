"""split_parameters: which weights it chooses, and what it says when it cannot."""

import pytest
import torch
from torch import nn

from skewflow.errors import NotOnManifoldError, ShapeError
from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD, split_parameters


class Tied(nn.Module):
    """An encoder and a decoder that share one weight, a frozen scale, a recurrent net."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 6)
        self.decoder = nn.Linear(6, 6, bias=False)
        self.decoder.weight = self.encoder.weight
        self.rnn = nn.RNN(6, 4, num_layers=2)
        self.scale = nn.Parameter(torch.ones(6), requires_grad=False)


def names(parameters):
    return [name for name, _ in parameters]


@pytest.mark.parametrize(
    "orthogonal, expected",
    [
        ("rnn.weight_hh*", ["rnn.weight_hh_l0", "rnn.weight_hh_l1"]),
        ("rnn.weight_hh_l[!0]", ["rnn.weight_hh_l1"]),
        (["rnn.weight_hh_l1", "encoder.weight"], ["encoder.weight", "rnn.weight_hh_l1"]),
        (("*weight_hh*", "*weight_hh_l0"), ["rnn.weight_hh_l0", "rnn.weight_hh_l1"]),
        (lambda name, p: p.shape == (6, 6), ["encoder.weight"]),
        (
            lambda name, p: name.startswith("rnn.weight_hh"),
            ["rnn.weight_hh_l0", "rnn.weight_hh_l1"],
        ),
    ],
)
def test_weights_are_chosen_by_name_or_by_a_function(orthogonal, expected):
    ours, rest = split_parameters(Tied(), orthogonal)
    assert names(ours) == expected
    assert not set(names(ours)) & set(names(rest))


def test_the_two_lists_are_the_parameters_of_the_model_each_once():
    model = Tied()
    ours, rest = split_parameters(model, "rnn.weight_hh*")
    split = {name: id(p) for name, p in [*ours, *rest]}
    assert split == {name: id(p) for name, p in model.named_parameters()}
    assert len(ours) + len(rest) == len(split)


@pytest.mark.parametrize("name", ["encoder.weight", "decoder.weight"])
def test_a_shared_weight_is_chosen_by_each_of_its_names_and_appears_once(name):
    model = Tied()
    ours, rest = split_parameters(model, name)
    assert names(ours) == ["encoder.weight"] and ours[0][1] is model.decoder.weight
    assert "decoder.weight" not in names(rest)


def test_a_frozen_parameter_is_kept_where_it_belongs():
    model = Tied()
    model.encoder.weight.requires_grad_(False)
    ours, rest = split_parameters(model, "encoder.weight")
    assert names(ours) == ["encoder.weight"] and "scale" in names(rest)


def test_the_lists_go_to_flow_sgd_and_to_adamw_and_no_weight_was_changed(generator):
    model = Tied()
    before = [p.detach().clone() for p in model.parameters()]
    ours, rest = split_parameters(model, "rnn.weight_hh*")
    for p, q in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, q)
    for _, p in ours:
        orthogonal_(p, generator=generator)
    flow, adam = FlowSGD(ours, lr=0.1), torch.optim.AdamW(rest)
    assert flow.param_groups[0]["param_names"] == names(ours)
    assert adam.param_groups[0]["param_names"] == names(rest)


def test_a_weight_that_was_not_made_orthogonal_is_named_with_the_way_out():
    ours, _ = split_parameters(Tied(), "rnn.weight_hh*")
    with pytest.raises(NotOnManifoldError, match=r"rnn\.weight_hh_l0.*nn\.orthogonal_"):
        FlowSGD(ours, lr=0.1)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "orthogonal, error, message",
    [
        ("rnn.wieght_hh*", ValueError, "'rnn.wieght_hh\\*' matches none of its 12 names.*hh_l"),
        (["encoder.weight", "deocder.*"], ValueError, "'deocder.\\*' matches none.*decoder.weight"),
        ("rnn.*", ShapeError, "it chose rnn.bias_ih_l0 of shape \\(4,\\).*other optimiser"),
        (lambda name, p: False, ValueError, "at least one of the 11 parameters: it chose none"),
        ([], ValueError, "it chose none"),
    ],
)
def test_a_choice_that_cannot_be_meant_is_refused(orthogonal, error, message):
    with pytest.raises(error, match=message):
        split_parameters(Tied(), orthogonal)


@pytest.mark.bad_input
def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="it has no parameters"):
        split_parameters(nn.ReLU(), "weight")
