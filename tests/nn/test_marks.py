import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

from skewflow.errors import ShapeError
from skewflow.geometry import check_stiefel
from skewflow.nn import OrthogonalLinear, mark_orthogonal, orthogonal_parameters
from skewflow.optim import split_parameters


def names(parameters):
    return [name for name, _ in parameters]


def test_a_marked_weight_is_orthogonal_and_found_and_the_others_are_untouched(generator):
    model = nn.ModuleDict({"rnn": nn.RNN(3, 5), "head": nn.Linear(5, 2)})
    before = model["rnn"].weight_ih_l0.detach().clone()
    mark_orthogonal(model["rnn"], "weight_hh_l0", generator=generator)
    mark_orthogonal(model["rnn"], "weight_hh_l0", generator=generator)
    ours, rest = split_parameters(model)
    assert names(ours) == ["rnn.weight_hh_l0"] == names(orthogonal_parameters(model))
    assert len(rest) == 5 and torch.equal(model["rnn"].weight_ih_l0, before)
    assert check_stiefel(model["rnn"].weight_hh_l0.detach())


def test_marking_one_module_leaves_others_of_its_class_alone():
    first, second = OrthogonalLinear(3, 4), OrthogonalLinear(3, 4)
    first.register_parameter("extra", nn.Parameter(torch.empty(4, 2)))
    mark_orthogonal(first, "extra")
    assert names(orthogonal_parameters(first)) == ["weight", "extra"]
    assert names(orthogonal_parameters(second)) == ["weight"]


def test_a_mark_on_either_of_two_tied_layers_is_enough():
    model = nn.Sequential(nn.Linear(4, 4), OrthogonalLinear(4, 4))
    model[0].weight = model[1].weight
    assert names(orthogonal_parameters(model)) == ["0.weight"]


def test_a_trained_parametrised_weight_is_kept_when_the_mark_is_set_by_hand():
    layer = orthogonal(nn.Linear(5, 5))
    trained = layer.weight.detach().clone()
    layer.orthogonal_names = ("weight",)
    with pytest.raises(ValueError, match=r"the model \(ParametrizedLinear\).*remove_parametriz"):
        split_parameters(layer)
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    ours, rest = split_parameters(layer)
    assert names(ours) == ["weight"] and names(rest) == ["bias"]
    assert torch.equal(ours[0][1], trained)


@pytest.mark.bad_input
def test_a_mark_that_cannot_be_is_refused_and_not_made():
    layer = nn.Linear(3, 4)
    with pytest.raises(ValueError, match="of Linear itself: got 'wieght', it has weight, bias"):
        mark_orthogonal(layer, "wieght")
    with pytest.raises(ValueError, match="it has none. Pass the submodule"):
        mark_orthogonal(nn.Sequential(layer), "0.weight")
    with pytest.raises(ShapeError, match="at least two dimensions"):
        mark_orthogonal(layer, "bias")
    with pytest.raises(ValueError, match="chose none.*mark_orthogonal"):
        split_parameters(layer)
    layer.orthogonal_names = ("kernel",)
    with pytest.raises(ValueError, match="must name parameters of that module: 'kernel'"):
        split_parameters(nn.Sequential(layer))
